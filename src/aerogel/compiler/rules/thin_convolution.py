"""Convolutions that make few channels of many: XLA's CPU backend is made for many on both sides.

They are what differentiates a network's first layers by their inputs. One matrix product makes all channels for all
places of the kernel at once, and what it makes is added up where it goes, one axis after the other (col2im). The batch
is the last axis meanwhile, so that what is moved lies in long rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from .on import on

# What was measured to pay (docs/reference/catalogue-elementary.md).
MOST_MADE, FEWEST_GIVEN = 8, 6  # channels
LONGEST_KERNEL = 16  # of each axis: each place is a slice of its own
MOST_AMPLIFIED = 6  # times that the product is as large as input and output
FEWEST_PRODUCTS = 1 << 20  # below, starting the pieces takes most of the time

Sizes = Sequence[int]


@dataclass(frozen=True)
class _Shapes:
    """The sizes of a convolution.

    Attributes:
        inputs, outputs, batch: how many channels and images.
        given, places, made: the axes of input, kernel and output.
        before: what is padded in front of each axis.
        apart: how far from each other the places are.
    """

    inputs: int
    outputs: int
    batch: int
    given: tuple[int, ...]
    places: tuple[int, ...]
    made: tuple[int, ...]
    before: tuple[int, ...]
    apart: tuple[int, ...]


@on(
    lax.conv_general_dilated_p,
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="one product for all places of the kernel keeps vector registers full",
)
def thin_convolution(
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
    precision: Any,
    preferred_element_type: Any,
) -> Any:
    """The convolution as a product whose result is added up where it goes."""
    data, kernel, out = dimension_numbers.lhs_spec, dimension_numbers.rhs_spec, dimension_numbers.out_spec
    if any(x.dtype != np.float32 for x in (lhs, rhs)) or preferred_element_type not in (None, np.dtype(np.float32)):
        return f"it is of {lhs.dtype} and {rhs.dtype}, not of float32"
    if feature_group_count != 1 or batch_group_count != 1:
        return "its channels or its batch have groups"
    if max((*window_strides, *lhs_dilation), default=1) > 1:
        return "it has strides, or is the derivative of one with strides"
    given = tuple(lhs.shape[axis] for axis in data[2:])
    places = tuple(rhs.shape[axis] for axis in kernel[2:])
    ends = zip(given, places, rhs_dilation, padding, strict=True)
    made = tuple(n + low + high - (count - 1) * apart for n, count, apart, (low, high) in ends)
    before = tuple(low for low, _ in padding)
    channels = rhs.shape[kernel[1]], rhs.shape[kernel[0]], lhs.shape[data[0]]
    shapes = _Shapes(*channels, given, places, made, before, tuple(rhs_dilation))
    refusal = _refusal(shapes)
    if refusal is not None:
        return refusal
    x = lax.transpose(lhs, (data[1], *data[2:], data[0]))
    y = _scattered(x, lax.transpose(rhs, (kernel[0], *kernel[2:], kernel[1])), shapes, precision)
    return lax.transpose(y, [(out[1], *out[2:], out[0]).index(axis) for axis in range(lhs.ndim)])


def _refusal(shapes: _Shapes) -> str | None:
    """Why the library is as fast; None if it is not."""
    if shapes.outputs > MOST_MADE or not FEWEST_GIVEN <= shapes.inputs > shapes.outputs:
        return f"it makes {shapes.outputs} channels of {shapes.inputs}"
    places, given, made = (math.prod(sizes) for sizes in (shapes.places, shapes.given, shapes.made))
    products = shapes.inputs * shapes.outputs * places * given * shapes.batch
    if min(shapes.made, default=0) < 1 or products < FEWEST_PRODUCTS:
        return f"it takes {max(products, 0)} products: fewer than {FEWEST_PRODUCTS}"
    if places < 2 or max(shapes.places) > LONGEST_KERNEL:
        return f"its kernel has one place, or more than {LONGEST_KERNEL} along an axis"
    if places * shapes.outputs * given > MOST_AMPLIFIED * (shapes.inputs * given + shapes.outputs * made):
        return "the product would be too large"
    return None


def _scattered(x: Any, weights: Any, shapes: _Shapes, precision: Any) -> Any:
    """For each place of the kernel a product, added up where it goes."""
    flat = lax.reshape(weights, (weights.size // shapes.inputs, shapes.inputs))
    y = lax.dot(flat, lax.reshape(x, (shapes.inputs, x.size // shapes.inputs)), precision=precision)
    y = lax.reshape(y, (shapes.outputs, *shapes.places, *shapes.given, shapes.batch))
    for k in reversed(range(len(shapes.places))):  # axis 1 + k has the places; without it, `along` what they go to
        along = 1 + 2 * k
        shape = [n for axis, n in enumerate(y.shape) if axis != 1 + k]
        shape[along] = shapes.made[k]
        total = lax.full(shape, 0, y.dtype)
        for place in range(shapes.places[k]):
            # Entry p of the input is read by entry p - shift of the output.
            shift = place * shapes.apart[k] - shapes.before[k]
            first, last = max(0, shift), min(shapes.given[k], shapes.made[k] + shift)
            if first >= last:
                continue
            part = lax.index_in_dim(y, place, 1 + k, keepdims=False)
            part = lax.slice_in_dim(part, first, last, axis=along)
            start = [0] * total.ndim
            start[along] = first - shift
            there = lax.slice_in_dim(total, first - shift, last - shift, axis=along)
            total = lax.dynamic_update_slice(total, there + part, [np.int32(n) for n in start])
        y = total
    return y
