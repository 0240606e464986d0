"""The derivative of a depthwise convolution's kernel: XLA's CPU backend writes a convolution in groups of the batch.

Each entry is a sum over the batch and all places; where the kernel is small there are few of them for each channel, and
a sum of products of shifted arrays is one loop for each place of the kernel.
"""

import itertools
import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from .convolution import Convolution
from .on import on

MOST_PLACES = 9  # 25 took 1.7 of the time of XLA's form


@on(
    lax.conv_general_dilated_p,
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="a sum of products for each place of the kernel reads the arrays as they lie",
)
def depthwise_kernel_gradient(lhs: Any, rhs: Any, **params: Any) -> Any:
    """The derivative: `lhs` is the input, whose channels stand for the batch, and `rhs` the cotangent."""
    conv = Convolution.of(lhs, rhs, params)
    if 0 in (*lhs.shape, *rhs.shape):
        return "it is zero: nothing is summed, and zeros around nothing times infinity would be"
    if conv.batch_groups == 1:
        return "its batch has no groups"
    if not conv.is_float32:
        return "it is not of float32 alone"
    if conv.batch != conv.batch_groups:
        return "several channels share a group"
    if not 0 < math.prod(conv.made) <= MOST_PLACES or not conv.products:
        return f"the kernel has more than {MOST_PLACES} places, or nothing to sum"
    whole, data = conv.padded(lhs), conv.data
    # The cotangent as the input lies: its channels at the place of the input's.
    cotangent = lax.transpose(rhs, [conv.kernel[data.index(axis)] for axis in range(lhs.ndim)])
    columns = []
    for place in itertools.product(*map(range, conv.made)):
        start, limit, step = [0] * lhs.ndim, list(whole.shape), [1] * lhs.ndim
        for axis, p, s, extent, d in zip(data[2:], place, conv.strides, conv.extents, conv.dilation, strict=True):
            start[axis], limit[axis], step[axis] = p * s, p * s + extent, d
        part = lax.slice(whole, start, limit, step)
        if conv.batch != conv.outputs:
            part = jnp.repeat(part, conv.outputs // conv.batch, data[0])
        columns.append(jnp.sum(part * cotangent, (*data[1:],)))
    found = lax.reshape(jnp.stack(columns, 1), (1, conv.outputs, *conv.made))
    return conv.result(found, range(lhs.ndim))
