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
from .once import stored
from .site import Site

Fold = Callable[[Any, Any], Any]
FEW = 4  # places of windows that are apart
MOST_SLICES = 8  # places of windows that are apart: more are folds of folds, of which some are picked

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
    if x.dtype not in (jnp.float32, jnp.float64, jnp.int32, jnp.int64):
        return f"{x.dtype.name} numbers"
    if any(n > 1 for n in base_dilation):
        return "what lies between the entries would have to be made"
    if not x.size or max(window_dimensions, default=1) == 1:
        return "its windows hold one number or none"
    if site.over_devices:
        return "its values may be spread over devices"
    apart = any(n > 1 for n in window_strides)
    sums = site.primitive == "reduce_window_sum"
    if apart and math.prod(window_dimensions) <= FEW and (sums or window_strides[-1] == 1):
        return "of so few entries what stands around it is faster with the window as one"
    if sums and apart and site.is_reduced():
        return "what is summed up again takes no longer from window to window"
    fold = _FOLDS[site.primitive]
    if any(low or high for low, high in padding):
        if site.maker(0) in _APART:
            return "in its padding XLA would compute number by number what is vector code now"
        x = lax.pad(x, start, [(low, high, 0) for low, high in padding])
    for d, (n, stride, step) in enumerate(zip(window_dimensions, window_strides, window_dilation, strict=True)):
        x = _along(x, d, n, stride, step, fold)
    return stored(x) if x.dtype in (jnp.float32, jnp.float64) and site.is_reduced() else x


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
    for k in range(count.bit_length()):
        if k:
            far = step << (k - 1)
            size = x.shape[dim] - far
            x = fold(lax.slice_in_dim(x, 0, size, axis=dim), lax.slice_in_dim(x, far, None, axis=dim))
        if count & (1 << k):
            start, done = done * step, done + (1 << k)
            piece = x if not start else lax.slice_in_dim(x, start, None, axis=dim)
            if total is not None:
                size = min(piece.shape[dim], total.shape[dim])
                total, piece = (lax.slice_in_dim(v, 0, size, axis=dim) for v in (total, piece))
            total = piece if total is None else fold(total, piece)
    return total
