"""Sums over windows of which each holds one number, and zeros: what a gradient of average pooling is."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

Config = Sequence[tuple[int, int, int]]


def repeated(x: Any, config: Config, window: Sequence[int], make: Callable[[Any], Any] | None) -> Any:
    """The sum over windows that are one apart of an array that was padded by zeros; None where windows may hold two.

    The cotangents of windows that do not overlap lie `stride` apart in zeros, and each is read by the `size` windows
    that reach it: it is repeated, behind it there may be gaps, and around all there may be more zeros, or less. `make`
    makes the numbers once, which XLA would compute for each of these windows.
    """
    strides = [inner + 1 for _, _, inner in config]
    counts = [_count(n, *one) for n, one in zip(x.shape, config, strict=True)]
    if min(low for low, _, _ in config) < 0 or min(high for _, high, _ in config) < 0 or not math.prod(counts):
        return None
    if any(size > stride for size, stride in zip(window, strides, strict=True) if size > 1):
        return None
    if all(size == 1 for size, stride in zip(window, strides, strict=True) if stride > 1):
        return None
    ends = [low + (n - 1) * s + 1 for (low, _, _), n, s in zip(config, counts, strides, strict=True)]
    numbers = lax.slice(x, [low for low, _, _ in config], ends, strides)
    numbers = make(numbers) if make else numbers
    split, gaps, kept = [], [], []
    for n, size, stride in zip(counts, window, strides, strict=True):
        kept.append(len(split))
        split += [n] if stride == 1 else [n, size]
        gaps += [(0, 0, 0)] if stride == 1 else [(0, 0, 0), (0, stride - size, 0)]
    zero = lax.full((), 0, x.dtype)
    whole = _padded(lax.broadcast_in_dim(numbers, split, kept), gaps, zero)
    whole = lax.reshape(whole, [n * s for n, s in zip(counts, strides, strict=True)])
    around = []
    for length, size, (low, _, _), n in zip(x.shape, window, config, whole.shape, strict=True):
        front = low - size + 1
        around.append((front, length - size + 1 - n - front, 0))
    return _padded(whole, around, zero)


def repeats_one(shape: Sequence[int], config: Config, window: Sequence[int]) -> bool:
    """Whether one number was padded along each axis of the windows: the gradient of a mean over whole images."""
    return all(_count(n, *one) == 1 for n, one, size in zip(shape, config, window, strict=True) if size > 1)


def _count(length: int, low: int, high: int, inner: int) -> int:
    """How many numbers were padded to a length."""
    return (length - low - high - 1) // (inner + 1) + 1


def _padded(x: Any, config: Config, zero: Any) -> Any:
    return lax.pad(x, zero, config) if any(any(one) for one in config) else x
