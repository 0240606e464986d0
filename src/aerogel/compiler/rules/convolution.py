"""Convolutions of few terms: XLA's CPU backend hands them to a library that is made for many channels.

An output entry is a sum over the places of the kernel and the input channels of one group. Where those are few, the
sum is written out: each term is a slice of the input times a column of the kernel, and XLA makes one loop of them all.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .on import on
from .once import once

# What was measured to pay (docs/reference/catalogue-elementary.md). Where all outputs share their inputs, the library
# needs fewer reads for more of them; and where the channels are not the last axis, the derivative of the kernel reads
# the result in another order, which XLA makes by computing it in that order, entry by entry.
MOST_TERMS, MOST_TERMS_OF_A_GROUP = 160, 64
MOST_CHANNELS, MOST_PRODUCTS = 6, 160
MOST_LAST_CHANNELS, MOST_PRODUCTS_OF_LAST = 4, 450

Sizes = Sequence[int]


@on(
    lax.conv_general_dilated_p,
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="a sum of few shifted products is one loop",
)
def few_term_convolution(
    lhs: Any,
    rhs: Any,
    *,
    window_strides: Sizes,
    padding: Any,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any,
) -> Any:
    """The convolution as a sum of products."""
    data, kernel, out = dimension_numbers.lhs_spec, dimension_numbers.rhs_spec, dimension_numbers.out_spec
    if any(x.dtype != np.float32 for x in (lhs, rhs)) or preferred_element_type not in (None, np.dtype(np.float32)):
        return f"it is of {lhs.dtype} and {rhs.dtype}, not of float32"
    if batch_group_count != 1:
        return "its batch has groups: it is the derivative of a kernel"
    if feature_group_count == 1 and rhs.shape[kernel[1]] > 1 and max(window_strides, default=1) > 1:
        return "it has strides and several channels"  # 0.9 to 1.4 of the library's time
    sizes = [rhs.shape[axis] for axis in kernel[2:]]
    outputs, inputs = rhs.shape[kernel[0]], rhs.shape[kernel[1]]
    refusal = _too_many(inputs * math.prod(sizes), outputs, inputs, feature_group_count, data[1] == lhs.ndim - 1)
    if refusal is not None or not lhs.size or not rhs.size:
        return refusal or "it has no entries"
    config = [(0, 0, 0)] * lhs.ndim
    for axis, (low, high), dilation in zip(data[2:], padding, lhs_dilation, strict=True):
        config[axis] = (low, high, dilation - 1)
    whole = lax.pad(lhs, np.array(0, lhs.dtype), config)
    extents = [(size - 1) * d + 1 for size, d in zip(sizes, rhs_dilation, strict=True)]
    ends = [
        (whole.shape[axis] - extent) // s + 1 for axis, extent, s in zip(data[2:], extents, window_strides, strict=True)
    ]
    if min(ends, default=1) < 1:
        return "it has no entries"
    total = None
    for channel, *place in itertools.product(range(inputs), *map(range, sizes)):
        offsets = [p * d for p, d in zip(place, rhs_dilation, strict=True)]
        part = _shifted(whole, data, channel, inputs, feature_group_count, offsets, ends, window_strides)
        part = lax.transpose(part, [data[out.index(axis)] for axis in range(lhs.ndim)])
        column = _column(rhs, kernel, channel, place)
        term = _wide(part, out[1], outputs) * lax.expand_dims(
            column, [axis for axis in range(lhs.ndim) if axis != out[1]]
        )
        total = term if total is None else total + term
    return once(total)


def _too_many(terms: int, outputs: int, inputs: int, groups: int, channels_last: bool) -> str | None:
    """Why the library is as fast; None if it is not."""
    if groups > 1:
        return None if terms <= MOST_TERMS_OF_A_GROUP else f"its entries are sums of {terms} terms"
    products = MOST_PRODUCTS_OF_LAST if channels_last else MOST_PRODUCTS
    if inputs > (MOST_LAST_CHANNELS if channels_last else MOST_CHANNELS):
        return f"it has {inputs} input channels"
    if terms > MOST_TERMS or terms * outputs > products:
        return f"its entries are sums of {terms} terms, and there are {outputs} of them at each place"
    return None


def _shifted(
    whole: Any, spec: Sizes, channel: int, inputs: int, groups: int, offsets: Sizes, ends: Sizes, strides: Sizes
) -> Any:
    """One channel of each group, at one place of each window."""
    start, limit, step = [0] * whole.ndim, list(whole.shape), [1] * whole.ndim
    start[spec[1]], limit[spec[1]], step[spec[1]] = channel, channel + (groups - 1) * inputs + 1, inputs
    for axis, offset, n, s in zip(spec[2:], offsets, ends, strides, strict=True):
        start[axis], limit[axis], step[axis] = offset, offset + (n - 1) * s + 1, s
    return lax.slice(whole, start, limit, step)


def _column(rhs: Any, spec: Sizes, channel: int, place: Sizes) -> Any:
    """What the kernel has for one input channel at one place: a number for each output channel."""
    start, limit = [0] * rhs.ndim, list(rhs.shape)
    for axis, at in zip(spec[1:], (channel, *place), strict=True):
        start[axis], limit[axis] = at, at + 1
    return lax.reshape(lax.slice(rhs, start, limit), (rhs.shape[spec[0]],))


def _wide(part: Any, axis: int, outputs: int) -> Any:
    """One channel of each group, repeated for the outputs of the group; that of the only group is broadcast anyway."""
    groups = part.shape[axis]
    return part if groups in (1, outputs) else jnp.repeat(part, outputs // groups, axis)
