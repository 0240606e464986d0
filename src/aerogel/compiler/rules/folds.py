"""Folds over the windows of an array: sums and extrema of neighbours, as moving averages and pools are.

XLA's CPU backend goes from window to window, number by number. At one place of all windows the array is a slice, and a
fold of w places is made of folds of 1, 2, 4, ... places: of 64 it takes 0.3 of the time that 64 slices take.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..cost.primitives import DEAR
from .on import on
from .once import can_be_stored, once, stored
from .repeats import repeated, repeats_one
from .site import Site

Fold = Callable[[Any, Any], Any]
FEW = 4  # places of windows that are apart
MANY = 16  # places of windows that are apart: their folds are not computed for each reader again
# Entries that are reduced as a whole: means over images of 7 x 7 took 0.4 of the time at 25,000, their gradient 0.3; at
# 100,000 0.5 and 1.24, at 3,200,000 1.8 and 1.0.
MOST_OF_WHOLE = 1 << 15
MOST_SLICES = 8  # places of windows that are apart: more are folds of folds, of which some are picked

PRODUCTS = frozenset(("conv_general_dilated", "dot_general"))

_APART = DEAR | {"cond"}
_REASON = "slices are added many entries at a time, and XLA goes from window to window"
_FOLDS: dict[str, Fold] = {"reduce_window_sum": lax.add, "reduce_window_max": lax.max, "reduce_window_min": lax.min}


def _windows(name: str, exactness: str) -> Any:
    return on(name, stage="final", platforms=("cpu",), exactness=exactness, reason=_REASON)


@_windows("reduce_window_sum", "reassociates")
def window_sum(x: Any, *, site: Site, **params: Any) -> Any:
    """Moving averages, average pooling, box filters, and the gradients of those whose windows are one apart."""
    return _folded(x, site, np.array(0, x.dtype), **params)


@_windows("reduce_window_max", "no_worse")
def window_max(x: Any, *, site: Site, **params: Any) -> Any:
    """Max-pooling, dilations."""
    return _folded(x, site, _least(x.dtype), **params)


@_windows("reduce_window_min", "no_worse")
def window_min(x: Any, *, site: Site, **params: Any) -> Any:
    """Erosions."""
    return _folded(x, site, _least(x.dtype, -1), **params)


def _folded(
    x: Any,
    site: Site,
    start: Any,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Any:
    """The fold, axis by axis; or the reason against it."""
    refusal = _why_not(x, site, window_dimensions, window_strides, base_dilation)
    if refusal:
        return refusal
    is_whole = _is_whole(x, window_dimensions)
    is_padded = any(low or high for low, high in padding)
    if site.primitive == "reduce_window_sum" and not is_padded and max((*window_strides, *window_dilation)) == 1:
        config = site.padding(0)
        if config is not None and repeats_one(x.shape, config, window_dimensions):
            return "each window holds the one number there is, which XLA repeats"
        make = once if x.dtype in (jnp.float32, jnp.float64) and site.computed(0) else None
        found = None if config is None else repeated(x, config, window_dimensions, make)
        if found is not None:
            return found
    if is_padded:
        if site.maker(0) in _APART:
            return "in its padding XLA would compute number by number what is vector code now"
        x = lax.pad(x, start, [(low, high, 0) for low, high in padding])
    fold = _FOLDS[site.primitive]
    for d, (n, stride, step) in enumerate(zip(window_dimensions, window_strides, window_dilation, strict=True)):
        x = _along(x, d, n, stride, step, fold)
    if x.dtype not in (jnp.float32, jnp.float64):
        return x
    if site.is_reduced():
        return stored(x)
    several = max(window_strides) > 1 and math.prod(window_dimensions) > MANY and site.end() is None
    return once(x) if several or is_whole else x


def _is_whole(x: Any, window: Sequence[int]) -> bool:
    """Whether a window is as wide as the array."""
    return all(n in (1, size) for n, size in zip(window, x.shape, strict=True))


def _why_not(x: Any, site: Site, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> str | None:
    if x.dtype not in (jnp.float32, jnp.float64, jnp.int32, jnp.int64):
        return f"{x.dtype.name} numbers"
    if any(n > 1 for n in dilation):
        return "what lies between the entries would have to be made"
    if not x.size or max(window, default=1) == 1:
        return "its windows hold one number or none"
    if site.over_devices:
        return "its values may be spread over devices"
    if x.size > MOST_OF_WHOLE and _is_whole(x, window):
        return "windows as wide as the array are a reduction, which XLA takes them for"
    return _why_not_apart(site, math.prod(window), strides[-1] > 1) if max(strides) > 1 else None


def _why_not_apart(site: Site, entries: int, in_rows: bool) -> str | None:
    """What speaks against slices of windows that are apart, along rows among others."""
    sums = site.primitive == "reduce_window_sum"
    if entries <= FEW and (sums or not in_rows):
        # XLA's library computes such a window together with the product in front of it.
        if not site.sources(0).isdisjoint(PRODUCTS):
            return "XLA computes windows of so few entries together with the product in front of them"
        # Slices are computed for each reader again; a sum reads the window as it is made.
        if site.spread() or site.is_reduced():
            return "of so few entries what reads it is faster with the window as one"
    if sums and site.is_reduced():
        return "what is summed up again takes no longer from window to window"
    return None


def _along(x: Any, dim: int, count: int, stride: int, step: int, fold: Fold) -> Any:
    """The folds of `count` numbers along a dimension, `step` apart, of windows that are `stride` apart."""
    if stride == 1:
        return folded(x, dim, count, step, fold)
    if count > MOST_SLICES:
        return lax.slice_in_dim(folded(x, dim, count, step, fold), 0, None, stride, axis=dim)
    end = x.shape[dim] - (count - 1) * step
    return reduce(fold, (lax.slice_in_dim(x, k * step, end + k * step, stride, axis=dim) for k in range(count)))


def _least(dtype: Any, sign: int = 1) -> Any:
    """What an extremum of nothing is."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array(-np.inf * sign, dtype)
    limits = np.iinfo(dtype)
    return np.array(limits.min if sign > 0 else limits.max, dtype)


def folded(x: Any, dim: int, count: int, step: int, fold: Fold) -> Any:
    """At each place along a dimension the fold of `count` numbers from there on, `step` apart."""
    total, done = None, 0
    # Folds of FEW of one long row are written once where there are many: of 30 of 4,000, 20,000 and 200,000 numbers
    # that took 0.3, 0.5 and 0.75 of the time. Of images it took 0.4 to 2.
    stores = count > MANY and x.size == x.shape[dim] and can_be_stored(x)
    for k in range(count.bit_length()):
        if k:
            far = step << (k - 1)
            size = x.shape[dim] - far
            x = fold(lax.slice_in_dim(x, 0, size, axis=dim), lax.slice_in_dim(x, far, None, axis=dim))
            x = once(x) if stores and 1 << k == FEW else x
        if count & (1 << k):
            start, done = done * step, done + (1 << k)
            piece = x if not start else lax.slice_in_dim(x, start, None, axis=dim)
            if total is not None:
                size = min(piece.shape[dim], total.shape[dim])
                total, piece = (lax.slice_in_dim(v, 0, size, axis=dim) for v in (total, piece))
            total = piece if total is None else fold(total, piece)
    return total
