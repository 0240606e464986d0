"""Convolutions of few terms: XLA's CPU backend hands them to a library that is made for many channels.

An output entry is a sum over the places of the kernel and the input channels of one group. Where those are few, the
sum is written out: each term is a slice of the input times a column of the kernel, and XLA makes one loop of them all.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from .convolution import Convolution
from .on import on
from .once import once

# What was measured to pay (docs/reference/catalogue-elementary.md). Where all outputs share their inputs, the library
# needs fewer reads for more of them; and where the channels are not the last axis, the derivative of the kernel reads
# the result in another order, which XLA makes by computing it in that order, entry by entry.
MOST_TERMS, MOST_TERMS_OF_A_GROUP = 160, 64
MOST_CHANNELS, MOST_PRODUCTS = 6, 160
MOST_LAST_CHANNELS, MOST_PRODUCTS_OF_LAST = 4, 450
# Sums of so many terms are added up: a sum of 121 in one row has 2 to 3 times the error of the library's.
TERMS_AT_ONCE = 16


@on(
    lax.conv_general_dilated_p,
    stage="final",
    platforms=("cpu",),
    exactness="finite",  # whether the zeros around an input meet an infinite kernel hangs on the loops that XLA takes
    reason="a sum of few shifted products is one loop",
)
def few_term_convolution(lhs: Any, rhs: Any, **params: Any) -> Any:
    """The convolution as a sum of products."""
    conv = Convolution.of(lhs, rhs, params)
    if not conv.is_float32:
        return "it is not of float32 alone"
    if conv.batch_groups != 1:
        return "its batch has groups: it is the derivative of a kernel"
    if conv.groups == 1 and conv.inputs > 1 and max(conv.strides, default=1) > 1:
        return "it has strides and several channels"  # 0.9 to 1.4 of the library's time
    refusal = _too_many(conv)
    if refusal is not None or not conv.products or not lhs.size:  # of nothing, the kernel's nan is no term
        return refusal or "it has no entries"
    whole, axes = conv.padded(lhs), [axis for axis in range(lhs.ndim) if axis != conv.out[1]]
    own = _own(lhs, conv)
    total = few = None
    for k, (channel, *place) in enumerate(itertools.product(range(conv.inputs), *map(range, conv.places))):
        part = _laid_out(_shifted(whole, conv, channel, place), conv)
        column = lax.expand_dims(_column(rhs, conv.kernel, channel, place), axes)
        if own is not None:
            column = jnp.where(_laid_out(_shifted(own, conv, 0, place), conv), column, 0)
        term = _wide(part, conv.out[1], conv.outputs) * column
        few = term if few is None else few + term
        if k % TERMS_AT_ONCE == TERMS_AT_ONCE - 1 or k == conv.terms - 1:
            total, few = few if total is None else total + few, None
    return once(total)


def is_sum_of_few(conv: Convolution) -> bool:
    """Whether a convolution of float32 is written out."""
    return conv.is_float32 and _too_many(conv) is None


def _too_many(conv: Convolution) -> str | None:
    """Why the library is as fast; None if it is not."""
    if conv.groups > 1:
        return None if conv.terms <= MOST_TERMS_OF_A_GROUP else f"its entries are sums of {conv.terms} terms"
    channels_last = conv.data[1] == len(conv.data) - 1
    products = MOST_PRODUCTS_OF_LAST if channels_last else MOST_PRODUCTS
    if conv.inputs > (MOST_LAST_CHANNELS if channels_last else MOST_CHANNELS):
        return f"it has {conv.inputs} input channels"
    if conv.terms > MOST_TERMS or conv.terms * conv.outputs > products:
        return f"its entries are sums of {conv.terms} terms, and there are {conv.outputs} of them at each place"
    return None


def _own(lhs: Any, conv: Convolution) -> Any:
    """Which entries in space are the input's own, where products with the others are left out; else None.

    An infinite kernel shows it: XLA's library multiplies the zeros around the input, its own loops, which it takes
    where there are holes, do not.
    """
    if conv.groups > 1 or max(conv.holes, default=1) == 1:
        return None
    shape = [1] * lhs.ndim
    for axis, n in zip(conv.data[2:], conv.given, strict=True):
        shape[axis] = n
    return conv.padded(jnp.ones(shape, bool))


def _laid_out(part: Any, conv: Convolution) -> Any:
    """What has its axes as the input has them, with the axes of the output."""
    return lax.transpose(part, [conv.data[conv.out.index(d)] for d in range(part.ndim)])


def _shifted(whole: Any, conv: Convolution, channel: int, place: Sequence[int]) -> Any:
    """One channel of each group, at one place of each window."""
    start, limit, step = [0] * whole.ndim, list(whole.shape), [1] * whole.ndim
    axis = conv.data[1]
    start[axis], limit[axis], step[axis] = channel, channel + (conv.groups - 1) * conv.inputs + 1, conv.inputs
    for axis, p, d, n, s in zip(conv.data[2:], place, conv.dilation, conv.made, conv.strides, strict=True):
        start[axis], limit[axis], step[axis] = p * d, p * d + (n - 1) * s + 1, s
    return lax.slice(whole, start, limit, step)


def _column(rhs: Any, spec: Sequence[int], channel: int, place: Sequence[int]) -> Any:
    """What the kernel has for one input channel at one place: a number for each output channel."""
    start, limit = [0] * rhs.ndim, list(rhs.shape)
    for axis, at in zip(spec[1:], (channel, *place), strict=True):
        start[axis], limit[axis] = at, at + 1
    return lax.reshape(lax.slice(rhs, start, limit), (rhs.shape[spec[0]],))


def _wide(part: Any, axis: int, outputs: int) -> Any:
    """One channel of each group, repeated for the outputs of the group; that of the only group is broadcast anyway."""
    groups = part.shape[axis]
    return part if groups in (1, outputs) else jnp.repeat(part, outputs // groups, axis)
