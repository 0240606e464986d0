"""Blocks of a value: cutting one out, putting them together again."""

import math
from typing import Any

from jax import lax

from .answer import Axis


def take_block(x: Any, axis: Axis, length: int, start: Any, size: int) -> Any:
    """The block `start .. start + size` of `x` along an axis of `length`: `axis.dim` shrinks, all else stays.

    `start` is an int or an int32 scalar, possibly traced; it must leave room for the block (a traced start that does
    not is clamped, as by `lax.dynamic_slice`).
    """
    if size == length:
        return x
    if axis.outer == 1:
        return _cut(x, axis.dim, start, size, axis.inner)
    split = (*x.shape[: axis.dim], axis.outer, length * axis.inner, *x.shape[axis.dim + 1 :])
    part = _cut(lax.reshape(x, split), axis.dim + 1, start, size, axis.inner)
    return lax.reshape(part, axis.resize(x.shape, size))


def _cut(x: Any, dim: int, start: Any, size: int, inner: int) -> Any:
    if isinstance(start, int):
        return lax.slice_in_dim(x, start * inner, (start + size) * inner, axis=dim)
    return lax.dynamic_slice_in_dim(x, start * inner if inner != 1 else start, size * inner, axis=dim)


def stack_blocks(blocks: Any, axis: Axis, length: int) -> Any:
    """The whole value from its equal blocks, stacked in order on a new leading dimension.

    `blocks` has shape `[n, *block]` with `n` blocks of `length / n` indices each. A dimension number `axis.dim` is
    one of the block (and of the result). No transpose is made where the axis already leads.
    """
    n, *block = blocks.shape
    before, after = tuple(block[: axis.dim]), tuple(block[axis.dim + 1 :])
    whole = (*before, axis.outer * length * axis.inner, *after)
    if axis.outer * math.prod(before) == 1:
        return lax.reshape(blocks, whole)
    per_block = length // n * axis.inner if n else 0
    split = lax.reshape(blocks, (n, *before, axis.outer, per_block, *after))
    moved = len(before) + 1
    order = (*range(1, moved + 1), 0, *range(moved + 1, split.ndim))
    return lax.reshape(lax.transpose(split, order), whole)


def append_block(a: Any, b: Any, axis: Axis) -> Any:
    """`b` behind `a` along an axis."""
    if axis.outer == 1:
        return lax.concatenate([a, b], axis.dim)
    d, shape = axis.dim, a.shape
    split = [lax.reshape(x, (*shape[:d], axis.outer, x.shape[d] // axis.outer, *shape[d + 1 :])) for x in (a, b)]
    whole = lax.concatenate(split, d + 1)
    return lax.reshape(whole, (*shape[:d], a.shape[d] + b.shape[d], *shape[d + 1 :]))
