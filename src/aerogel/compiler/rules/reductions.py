"""The last of cumulative sums."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from .operand import Operand
from .places import part
from .rule import rule


@rule(exactness="reassociates", reason="a sum reads its terms once")
def last_of_cumsum(x: Any, *, axis: int = 0, reverse: bool = False) -> Any:
    """The cumulative sum at its end."""
    n = x.shape[axis]
    start = 0 if reverse else n - 1
    return part(lax.cumsum(x, axis, reverse=reverse), axis, start, start + 1)


@last_of_cumsum.to
def _(x: Any, *, axis: int, reverse: bool) -> Any:
    return jnp.sum(x, axis, dtype=x.dtype, keepdims=True)


@last_of_cumsum.when
def _(x: Operand, *, axis: int, reverse: bool) -> bool | str:
    return x.shape[axis] > 0 or "it is empty"


last_of_cumsum.begins = {"cumsum": None}
