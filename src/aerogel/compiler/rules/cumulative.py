"""Cumulative sums, products and extrema without a tower of slices.

JAX computes them on CPU by a tree of strided slices, paddings and additions that halves the axis at each level: log2(n)
passes over memory. Two other ways take fewer.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

from ..record import record
from .on import PrimitiveRule, on
from .once import once
from .places import spread
from .site import Site

# Measured borders: docs/reference/catalogue-order.md.
RADIX = 4
SHORTEST = 3  # elements along the axis
FEWEST = 64  # elements: XLA makes one kernel of JAX's form too
SHORTEST_LOOP = 32  # steps
FEWEST_IN_A_LOOP = 200  # elements: of fewer the tree is one kernel too, of more XLA shares it out, which takes 25 us
MOST_STEPS = 1024  # of a sum of floats: rounding errors grow with them
MOST_TURNED = 1 << 17  # bytes that a loop along the last axis takes: it turns them, and more leave the nearest cache
FEWEST_ROWS = 8  # elements in each step of a loop of exponentials
# Much arithmetic that XLA does not take for dear: normal numbers of float64, computed where each branch of a tree reads
# them, took 2 to 3 of JAX's time for their sums (float32: 1.1 to 1.6); computed once 0.7 to 1.0.
COSTLY = frozenset(("erf_inv", "lgamma", "digamma", *_jax.OURS))
MOST_REVERSED = 64  # rows: XLA fuses the reversed form along the last axis better


@record
class Cumulation:
    """What is accumulated: an associative operation, and the value that changes nothing."""

    combine: Callable[[jax.Array, jax.Array], jax.Array]
    neutral: Callable[[np.dtype], Any]


def _lowest(dtype: np.dtype) -> Any:
    if dtype == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, jnp.inexact) else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> Any:
    if dtype == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, jnp.inexact) else np.iinfo(dtype).max


CUMULATIONS = {
    "cumsum": Cumulation(lax.add, lambda dtype: 0),
    "cumprod": Cumulation(lax.mul, lambda dtype: 1),
    "cummax": Cumulation(lax.max, _lowest),
    "cummin": Cumulation(lax.min, _highest),
    "cumlogsumexp": Cumulation(jnp.logaddexp, _lowest),
}


def accumulated(name: str, x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """A cumulative operation: row by row along the first axis and along the last of little, else by a tree."""
    n = x.shape[axis]
    sums = name == "cumsum" and jnp.issubdtype(x.dtype, jnp.inexact)
    halves = jnp.issubdtype(x.dtype, jnp.inexact) and jnp.finfo(x.dtype).bits == 16
    in_front = math.prod(x.shape[:axis]) == 1
    may_loop = (in_front or _may_turn(x, axis)) and not halves and (not sums or n <= MOST_STEPS)
    if may_loop and n >= SHORTEST_LOOP and math.prod(x.shape) >= FEWEST_IN_A_LOOP:
        return row_by_row(name, x, axis, reverse)
    return in_a_tree(name, x, axis, reverse)


def _may_turn(x: jax.Array, axis: int) -> bool:
    """Whether columns of a matrix are gone through one after the other, as copies that are turned."""
    is_last, size = axis == x.ndim - 1, math.prod(x.shape)
    return is_last and x.shape[axis] <= MOST_STEPS and x.dtype.itemsize == 4 and 4 * size <= MOST_TURNED


def cannot_accumulate(x: Any, axis: int, reverse: bool, site: Site) -> str | None:
    """Why a cumulative operation stays as it is; None where another form pays."""
    n, size = x.shape[axis], math.prod(x.shape)
    if jnp.iscomplexobj(x):
        return "complex numbers"
    if n < SHORTEST:
        return f"{n} elements along the axis, fewer than {SHORTEST}"
    if size < FEWEST:
        return f"{size} elements, fewer than {FEWEST}"
    if reverse and math.prod(x.shape[axis + 1 :]) == 1 and size // n > MOST_REVERSED and not _may_turn(x, axis):
        return f"it runs backward along the last axis of {size // n} rows, which XLA does well"
    return spread(site)


def _is_costly(x: jax.Array, site: Site) -> bool:
    """Whether XLA would compute what the tree adds for each of its branches and levels, and that is much arithmetic."""
    return str(x.dtype) in ("float32", "float64") and not COSTLY.isdisjoint(site.computed(0))


def _rule_of(name: str, exactness: str) -> PrimitiveRule:
    @on(
        name,
        stage="final",
        platforms=("cpu",),
        exactness=exactness,
        reason="a tree of slices with two branches passes over memory more often",
        name=f"{name}-by-rows",
    )
    def by_rows(x: jax.Array, *, axis: int, reverse: bool, site: Site) -> jax.Array | str:
        config = site.padding(0) if name == "cumsum" and not site.over_devices else None
        if config and _holds_one(x.shape[axis], *config[axis]):
            return _repeated(x, axis, reverse, config[axis][0], site)
        refusal = cannot_accumulate(x, axis, reverse, site)
        return refusal or accumulated(name, once(x) if _is_costly(x, site) else x, axis, reverse)

    return by_rows


def _holds_one(length: int, low: int, high: int, _: int) -> bool:
    """Whether there is one number along an axis that was padded by zeros: a gradient of one entry of a sum."""
    return low >= 0 and high >= 0 and low + high == length - 1 and length > 1


def _repeated(x: jax.Array, axis: int, reverse: bool, low: int, site: Site) -> jax.Array:
    """That number from its place on, and zeros in front of it."""
    n = x.shape[axis]
    number = lax.slice_in_dim(x, low, low + 1, axis=axis)
    exact = str(x.dtype) in ("float32", "float64") and bool(site.computed(0))  # else it is computed for each place
    number = once(number) if exact else number
    count = low + 1 if reverse else n - low
    whole = lax.broadcast_in_dim(number, tuple(count if a == axis else m for a, m in enumerate(x.shape)), range(x.ndim))
    around = (0, n - count, 0) if reverse else (n - count, 0, 0)
    return lax.pad(whole, lax.full((), 0, x.dtype), [around if a == axis else (0, 0, 0) for a in range(x.ndim)])


cumsum_by_rows = _rule_of("cumsum", "reassociates")
cumprod_by_rows = _rule_of("cumprod", "reassociates")
# The same numbers: which of two zeros is the larger is not said.
cummax_by_rows = _rule_of("cummax", "no_worse")
cummin_by_rows = _rule_of("cummin", "no_worse")
cumlogsumexp_by_rows = _rule_of("cumlogsumexp", "reassociates")


@on(
    "cumlogsumexp",
    stage="before",
    platforms=("cpu",),
    reason="each step takes one exponential and one logarithm, and so does its derivative",
    name="cumlogsumexp-in-a-loop",
)
def cumlogsumexp_in_a_loop(x: jax.Array, *, axis: int, reverse: bool, site: Site) -> jax.Array | str:
    """A scan along the axis, which is differentiated as one."""
    n, others = x.shape[axis], math.prod(x.shape) // max(x.shape[axis], 1)
    if n < SHORTEST_LOOP or others < FEWEST_ROWS:
        return f"{n} steps with {others} elements each, fewer than {SHORTEST_LOOP} or {FEWEST_ROWS}"
    return spread(site) or row_by_row("cumlogsumexp", x, axis, reverse)


def row_by_row(name: str, x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """A cumulative operation step by step, whose steps stack their rows: each element is read and written once."""
    op = CUMULATIONS[name]

    def step(before: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        after = op.combine(before, row)
        return after, after

    rows = jnp.moveaxis(x, axis, 0)
    start = lax.full(rows.shape[1:], op.neutral(np.dtype(x.dtype)), x.dtype)
    return jnp.moveaxis(lax.scan(step, start, rows, reverse=reverse)[1], 0, axis)


def in_a_tree(name: str, x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """A cumulative operation by a tree with `RADIX` branches."""
    op = CUMULATIONS[name]
    n = x.shape[axis]
    count = n // RADIX
    if count == 0:
        return _one_by_one(op, x, axis, reverse)
    whole, rest = (x, None) if n % RADIX == 0 else _parted(x, axis, count * RADIX, reverse)
    split = lax.reshape(whole, (*x.shape[:axis], count, RADIX, *x.shape[axis + 1 :]))
    columns = [lax.index_in_dim(split, i, axis + 1, keepdims=False) for i in range(RADIX)]
    if reverse:
        columns.reverse()
    for i in range(1, RADIX):
        columns[i] = op.combine(columns[i - 1], columns[i])
    before = _shifted(op, in_a_tree(name, columns[-1], axis, reverse), axis, reverse)
    columns = [op.combine(before, c) for c in columns]
    if reverse:
        columns.reverse()
    out = lax.reshape(jnp.stack(columns, axis + 1), whole.shape)
    if rest is None:
        return out
    last = lax.index_in_dim(out, 0 if reverse else -1, axis)
    tail = op.combine(last, _one_by_one(op, rest, axis, reverse))
    return lax.concatenate([tail, out] if reverse else [out, tail], axis)


def _parted(x: jax.Array, axis: int, size: int, reverse: bool) -> tuple[jax.Array, jax.Array]:
    """The first `size` elements of the way along the axis, and the others."""
    n = x.shape[axis]
    cut = n - size if reverse else size
    parts = lax.slice_in_dim(x, 0, cut, axis=axis), lax.slice_in_dim(x, cut, n, axis=axis)
    return (parts[1], parts[0]) if reverse else parts


def _one_by_one(op: Cumulation, x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    n = x.shape[axis]
    if n == 0:
        return x
    parts = [lax.slice_in_dim(x, i, i + 1, axis=axis) for i in range(n)]
    if reverse:
        parts.reverse()
    for i in range(1, n):
        parts[i] = op.combine(parts[i - 1], parts[i])
    return lax.concatenate(parts[::-1] if reverse else parts, axis)


def _shifted(op: Cumulation, x: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """What was accumulated before each element."""
    one = tuple(1 if a == axis else m for a, m in enumerate(x.shape))
    first = lax.full(one, op.neutral(np.dtype(x.dtype)), x.dtype)
    n = x.shape[axis]
    if reverse:
        return lax.concatenate([lax.slice_in_dim(x, 1, n, axis=axis), first], axis)
    return lax.concatenate([first, lax.slice_in_dim(x, 0, n - 1, axis=axis)], axis)
