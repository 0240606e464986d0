"""Loops over flat arrays, as functions: plain, and keeping snapshots of their carry."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import ClosedJaxpr

from .snapshots import Placement

_jax.exclude_from_tracebacks(__file__)

Values = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop.

    Attributes:
        body: constants, carry, slices of inputs -> carry, results.
        consts: how many constants the loop takes.
        carries: how many arrays the carry is.
        placement: how many steps there are, or may be, and where snapshots are kept.
    """

    body: ClosedJaxpr
    consts: int
    carries: int
    placement: Placement

    unused = 0  # how many of the constants are not the body's

    def split(self, args: Values) -> tuple[list[Any], list[Any], list[Any]]:
        """Constants, carry, inputs."""
        to = self.consts + self.carries
        return list(args[: self.consts]), list(args[self.consts : to]), list(args[to:])

    def step(self, consts: Values, carry: Values, x: Values) -> tuple[list[Any], list[Any]]:
        """The next carry, and the results of the step."""
        outs = _jax.jaxpr_as_fun(self.body)(*consts[self.unused :], *carry, *x)
        return outs[: self.carries], outs[self.carries :]

    def place(self, step: Any) -> Any:
        """Where the inputs of a step stand."""
        return step

    def typed(self, outs: Values) -> list[Any]:
        """Results with the weak types that those of JAX's loops have."""
        return [_jax.weak_like(x, aval) for x, aval in zip(outs, self.body.out_avals, strict=True)]

    @abstractmethod
    def plain(self, *args: Any) -> list[Any]:
        """The last carry and the stacked results, from constants, the first carry and inputs."""

    @abstractmethod
    def with_snapshots(self, *args: Any) -> list[Any]:
        """What `plain` returns, then what `snapshots` takes."""

    @abstractmethod
    def snapshots(self, kept: Values) -> "Snapshots":
        """What is kept when the loop has run, from what `with_snapshots` returns behind results."""


@dataclass(frozen=True, eq=False)
class Snapshots:
    """A stack of snapshots.

    Attributes:
        top: the number of the last one.
        steps: for each, the step whose carry it is.
        slots: for each, where it stands.
        kept: each array of the carry, stacked.
        count: how many steps the loop made.
    """

    top: Any
    steps: Any
    slots: Any
    kept: list[Any]
    count: Any


def made(numbers: Sequence[int]) -> Any:
    """Numbers as a value of the program: under a mesh of explicit axes it has that mesh, and a constant has none."""
    return jnp.zeros(len(numbers), np.int32) + np.array(numbers, np.int32)


def stack_of(length: int, aval: Any) -> Any:
    """An array for `length` values of a type."""
    return _jax.stack_of((length,), (None,), aval)


def entries(stacks: Values, at: Any) -> list[Any]:
    """One entry of each stack."""
    return [lax.dynamic_index_in_dim(stack, at, keepdims=False) for stack in stacks]


def put(stacks: Values, values: Values, at: Any) -> list[Any]:
    """The stacks with one entry changed."""
    return [lax.dynamic_update_index_in_dim(stack, x, at, 0) for stack, x in zip(stacks, values, strict=True)]


def is_smooth(value: Any) -> bool:
    """Whether a value, a Python number too, or one of a type, has a cotangent."""
    return jnp.issubdtype(value.dtype if hasattr(value, "dtype") else jnp.result_type(value), np.inexact)
