"""The derivative of a depthwise convolution's kernel: XLA's CPU backend writes a convolution in groups of the batch.

Each entry is a sum over the batch and all places; where the kernel is small there are few of them for each channel, and
a sum of products of shifted arrays is one loop for each place of the kernel.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .on import on

MOST_PLACES = 9  # 25 took 1.7 of the time of XLA's form

Sizes = Sequence[int]


@on(
    lax.conv_general_dilated_p,
    stage="final",
    platforms=("cpu",),
    exactness="reassociates",
    reason="a sum of products for each place of the kernel reads the arrays as they lie",
)
def depthwise_kernel_gradient(
    lhs: Any,
    rhs: Any,
    *,
    window_strides: Sizes,
    padding: Any,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    dimension_numbers: Any,
    batch_group_count: int,
    preferred_element_type: Any,
) -> Any:
    """The derivative: `lhs` is the input, whose channels stand for the batch, and `rhs` the cotangent."""
    data, kernel, out = dimension_numbers.lhs_spec, dimension_numbers.rhs_spec, dimension_numbers.out_spec
    if batch_group_count == 1:
        return "its batch has no groups"
    if any(x.dtype != np.float32 for x in (lhs, rhs)) or preferred_element_type not in (None, np.dtype(np.float32)):
        return f"it is of {lhs.dtype} and {rhs.dtype}, not of float32"
    if lhs.shape[data[0]] != batch_group_count:
        return "several channels share a group"
    config = [(0, 0, 0)] * lhs.ndim
    for axis, (low, high), dilation in zip(data[2:], padding, lhs_dilation, strict=True):
        config[axis] = (low, high, dilation - 1)
    whole = lax.pad(lhs, np.array(0, lhs.dtype), config)
    extents = [(rhs.shape[axis] - 1) * d + 1 for axis, d in zip(kernel[2:], rhs_dilation, strict=True)]
    sizes = [(whole.shape[a] - e) // s + 1 for a, e, s in zip(data[2:], extents, window_strides, strict=True)]
    if not 0 < math.prod(sizes) <= MOST_PLACES or min(sizes) < 0 or not lhs.size or not rhs.size:
        return f"the kernel has more than {MOST_PLACES} places, or nothing to sum"
    # The cotangent as the input lies: its channels at the place of the input's.
    cotangent = lax.transpose(rhs, [kernel[data.index(axis)] for axis in range(lhs.ndim)])
    columns = []
    for place in itertools.product(*map(range, sizes)):
        start, limit, step = [0] * lhs.ndim, list(whole.shape), [1] * lhs.ndim
        for axis, p, s, extent, d in zip(data[2:], place, window_strides, extents, rhs_dilation, strict=True):
            start[axis], limit[axis], step[axis] = p * s, p * s + extent, d
        part = lax.slice(whole, start, limit, step)
        if batch_group_count != rhs.shape[kernel[0]]:
            part = jnp.repeat(part, rhs.shape[kernel[0]] // batch_group_count, data[0])
        columns.append(jnp.sum(part * cotangent, (*data[1:],)))
    found = lax.reshape(jnp.stack(columns, 1), (1, rhs.shape[kernel[0]], *sizes))
    return lax.transpose(found, [out.index(axis) for axis in range(lhs.ndim)])
