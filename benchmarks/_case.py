"""A case: one program as a user writes it, next to the forms that an expert would write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from ._elsewhere import UnderFlags


@dataclass(frozen=True)
class Bounds:
    """What a case must show, all of them ratios (the numbers are the issue's).

    `None` means no bound. Times: `optimised <= over_hand * hand`, `natural >= speedup * optimised`, `optimised <=
    over_natural * natural`.
    Memory: `optimised <= memory_over_hand * hand`, `natural >= memory_saving * optimised`.
    """

    over_hand: float | None = 1.05
    over_natural: float | None = 1.03
    speedup: float | None = None
    memory_over_hand: float | None = 1.10
    memory_saving: float | None = None


@dataclass(frozen=True)
class Case:
    """One benchmark.

    Attributes:
        natural: the program as a JAX user writes it.
        hand: expert forms by name. Which is best depends on the machine, so all are measured, and the fastest one is
            the yardstick.
        args: makes the arguments (called once, so that importing a claim allocates nothing).
        flags: `XLA_FLAGS` under which an expert would run the natural form; then `hand` is empty.
        grad: positions to differentiate by; empty for a program that is measured for its value only. A result that is
            no scalar is made one by `scalarise`.
        bounds: for the value; `grad_bounds` for value-and-gradient.
    """

    name: str
    natural: Callable
    hand: Mapping[str, Callable]
    args: Callable[[], tuple]
    grad: tuple[int, ...] = ()
    notes: str = ""
    flags: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    grad_bounds: Bounds = field(default_factory=Bounds)

    def modes(self) -> dict[str, tuple[Callable, dict[str, Callable | UnderFlags], Bounds]]:
        """Natural form, expert forms and bounds to measure, per mode: `value`, and `value and gradient` if asked."""
        modes = {"value": (self.natural, self._expert("value"), self.bounds)}
        if self.grad:
            mode = "value and gradient"
            modes[mode] = (value_and_grad(self.natural, self.grad), self._expert(mode), self.grad_bounds)
        return modes

    def _expert(self, mode: str) -> dict[str, Callable | UnderFlags]:
        if self.flags:
            claim = self.natural.__module__.rpartition(".")[2]
            return {self.flags: UnderFlags(claim, self.name, mode, self.flags)}
        if mode == "value":
            return dict(self.hand)
        return {name: value_and_grad(f, self.grad) for name, f in self.hand.items()}


def value_and_grad(f: Callable, argnums: tuple[int, ...]) -> Callable:
    """`jax.value_and_grad` of `f`, or of `scalarise` of its result where that is no scalar."""

    def scalar(*args):
        out = f(*args)
        return out if isinstance(out, jax.Array) and out.ndim == 0 else scalarise(out)

    return jax.value_and_grad(scalar, argnums)


def scalarise(out: object) -> jax.Array:
    """A cheap scalar that depends on every inexact element of `out`, with a cotangent that is not constant."""
    leaves = [leaf for leaf in jax.tree.leaves(out) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return sum((jnp.mean(0.5 * leaf * leaf + leaf) for leaf in leaves), jnp.zeros(()))


def normal(seed: int, *shape: int) -> jax.Array:
    """Standard normal float32 numbers, the same ones on every call."""
    return jax.random.normal(jax.random.key(seed), shape)
