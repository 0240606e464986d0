"""The last of cumulative sums and extrema."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .anywhere import anywhere
from .operand import Operand
from .places import part
from .rule import Rule, rule
from .site import Site

MANY = 1 << 12  # floats: of fewer a second look at all of them takes less than a branch takes to start


@rule(exactness="reassociates", reason="a sum reads its terms once")
def last_of_cumsum(x: Any, *, axis: int = 0, reverse: bool = False) -> Any:
    """The cumulative sum at its end."""
    return _end(lax.cumsum(x, axis, reverse=reverse), axis, reverse)


@last_of_cumsum.to
def _(x: Any, *, axis: int, reverse: bool) -> Any:
    return jnp.sum(x, axis, dtype=x.dtype, keepdims=True)


@last_of_cumsum.when
def _(x: Operand, *, axis: int, reverse: bool) -> bool | str:
    return x.shape[axis] > 0 or "it is empty"


def _extremum(before: Callable[..., Any]) -> Rule:
    # Not before derivatives are taken: of entries that are equal each would get another part.
    reason = "an extremum reads its entries once"
    found = rule(exactness="no_worse", reason=reason, stage="final", platforms=("cpu",))(before)
    found.when(_may_reduce)
    return found


def _may_reduce(x: Operand, *, axis: int, reverse: bool, site: Site) -> bool | str:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return "complex numbers"
    if x.shape[axis] == 0:
        return "it is empty"
    return "its values may be spread over devices" if site.over_devices else True


@_extremum
def last_of_cummax(x: Any, *, axis: int = 0, reverse: bool = False) -> Any:
    """The cumulative maximum at its end."""
    return _end(lax.cummax(x, axis, reverse=reverse), axis, reverse)


@last_of_cummax.to
def _(x: Any, *, axis: int, reverse: bool) -> Any:
    return _with_nan(x, jnp.max(x, axis, keepdims=True), axis)


@_extremum
def last_of_cummin(x: Any, *, axis: int = 0, reverse: bool = False) -> Any:
    """The cumulative minimum at its end."""
    return _end(lax.cummin(x, axis, reverse=reverse), axis, reverse)


@last_of_cummin.to
def _(x: Any, *, axis: int, reverse: bool) -> Any:
    return _with_nan(x, jnp.min(x, axis, keepdims=True), axis)


def _end(x: Any, axis: int, reverse: bool) -> Any:
    start = 0 if reverse else x.shape[axis] - 1
    return part(x, axis, start, start + 1)


def _with_nan(x: jax.Array, extremum: jax.Array, axis: int) -> jax.Array:
    """The extremum of each row, or nan where there is one: a reduction drops it on CPU.

    A sum, which is vector code, shows whether there may be any: it is nan as well where both infinities are.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return extremum

    def careful(x: jax.Array, extremum: jax.Array) -> jax.Array:
        has_nan = jnp.any(lax.ne(x, x), axis, keepdims=True)
        return lax.select(has_nan, lax.full_like(extremum, np.nan), extremum)

    if x.size < MANY:
        return careful(x, extremum)
    total = jnp.sum(x)
    return lax.cond(anywhere(lax.ne(total, total)), careful, lambda x, extremum: extremum, x, extremum)


last_of_cumsum.begins = {"cumsum": None}
last_of_cummax.begins = {"cummax": None}
last_of_cummin.begins = {"cummin": None}
