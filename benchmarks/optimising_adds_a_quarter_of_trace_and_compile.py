"""Claim: tracing and rewriting add at most a quarter to `jax.jit`'s trace and compile time, and grow linearly.

Generated programs of about 100, 1,000 and 10,000 equations, straight-line and with loops. Each round makes a new
function and traces, lowers and compiles it, under `jax.jit` and under `jax.jit(ag.optimize(...))`. *added* is the extra
time of tracing and lowering, *whole* all of the time, compilation included (rewriting may well save some of that); both
over the whole time of plain `jax.jit`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import aerogel as ag

from ._finding import Finding
from ._timing import Quartiles

BOUND_ADDED = 0.25
BOUND_WHOLE = 1.25
BOUND_LINEAR = 1.5  # added seconds per equation, at 10,000 equations over at 1,000
ROUNDS = {100: 20, 1_000: 6, 10_000: 2}  # XLA needs most of a minute for 10,000 equations


def straight(equations: int) -> Callable:
    """A deep network, no two layers alike, of about `equations` equations."""

    def f(w, b, x):
        for i in range(equations // 9):
            x = jax.nn.relu(x @ w + b * (0.5 + i))
            x = x / (1.0 + jnp.max(x, axis=-1, keepdims=True))
        return jnp.mean(x)

    return f


def loops(equations: int) -> Callable:
    """Scans whose outputs are reduced, one after another: about `equations` equations, loop bodies included."""

    def f(w, b, x):
        total = jnp.zeros(())
        for i in range(equations // 10):

            def body(c, _, i=i):
                c = jnp.tanh(c @ w + b * (0.5 + i))
                return c, c * c

            x, ys = lax.scan(body, x, None, length=8)
            total = total + jnp.mean(ys) - jnp.max(x)
        return total

    return f


@dataclass(frozen=True)
class Seconds:
    """Of tracing and lowering, and of the compilation after it."""

    trace: float
    compile: float

    @property
    def whole(self) -> float:
        """Of both."""
        return self.trace + self.compile


def time_compilation(f: Callable, args: tuple) -> Seconds:
    start = time.perf_counter()
    lowered = jax.jit(f).lower(*args)
    traced = time.perf_counter()
    lowered.compile()
    return Seconds(traced - start, time.perf_counter() - traced)


def count(jaxpr) -> int:
    """Equations of a jaxpr, those of inner ones included."""
    inner = (getattr(p, "jaxpr", p) for eqn in jaxpr.eqns for p in eqn.params.values())
    return len(jaxpr.eqns) + sum(count(p) for p in inner if hasattr(p, "eqns"))


def compare(make: Callable[[int], Callable], size: int, rounds: int) -> tuple[int, list[Seconds], list[Seconds]]:
    """Equations of the program, and the times of both forms, round by round; who goes first alternates."""
    args = (jnp.ones((16, 16)) / 16, jnp.ones(16), jnp.ones((4, 16)))
    plain: list[Seconds] = []
    optimised: list[Seconds] = []
    for round_ in range(rounds):
        pair = [(plain, lambda f: f), (optimised, ag.optimize)]
        for times, wrap in pair[:: 1 if round_ % 2 else -1]:
            times.append(time_compilation(wrap(make(size)), args))
    return count(jax.make_jaxpr(make(size))(*args).jaxpr), plain, optimised


def describe(name: str, times: list[Seconds]) -> str:
    trace, rest = np.median([t.trace for t in times]), np.median([t.compile for t in times])
    return f"{name}: trace {trace:.3f} s, compile {rest:.3f} s"


def findings(quick: bool = False) -> list[Finding]:
    """Two ratios per program and size, and one on linearity per kind of program."""
    found = []
    for kind, make in (("straight-line", straight), ("loops", loops)):
        compare(make, 100, 2)  # JAX imports and caches on first use
        added_per_equation = {}
        for size, rounds in ROUNDS.items():
            if quick and size > 1_000:
                continue
            equations, plain, optimised = compare(make, size, 2 if quick else rounds)
            before = np.array([t.whole for t in plain])
            added = np.array([o.trace - p.trace for p, o in zip(plain, optimised, strict=True)])
            whole = np.array([t.whole for t in optimised])
            added_per_equation[size] = float(np.median(added)) / equations
            name = f"{kind}, {equations} equations"
            details = f"{describe('plain', plain)}; {describe('optimised', optimised)}"
            found.append(Finding(name, "added", Quartiles.of(added / before), BOUND_ADDED, details))
            found.append(Finding(name, "whole", Quartiles.of(whole / before), BOUND_WHOLE))
        if 10_000 in added_per_equation:
            small, large = added_per_equation[1_000], added_per_equation[10_000]
            ratio = Quartiles(large / small, large / small, large / small)
            details = f"{small * 1e6:.0f} and {large * 1e6:.0f} microseconds per equation"
            found.append(Finding(kind, "per equation, 10,000 over 1,000", ratio, BOUND_LINEAR, details))
    return found
