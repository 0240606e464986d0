"""Claim: a network of convolutions of few channels and poolings takes the time of one written for images that lie last.

The expert knows that such convolutions are fast with the images as the last axis, and writes all arrays so; that form
is measured with its convolutions by rows, optimised too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

import aerogel as ag

from ._case import Bounds, Case, normal

AS_LAST = Bounds(over_hand=1.05, over_natural=1.03, speedup=2.0)


def network(layout):
    """The loss of LeNet's two convolutions, with `relu` and pooling of pairs."""
    numbers = (layout, "OIHW", layout)
    window = tuple(2 if axis in "HW" else 1 for axis in layout)
    bias_shape = tuple(-1 if axis == "C" else 1 for axis in layout)

    def loss(params, x):
        for kernel, bias in params:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=numbers)
            x = jax.nn.relu(x + bias.reshape(bias_shape))
            x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
        return jnp.mean(jnp.sin(x))

    return loss


def last(params, x):
    return network("CHWN")(params, jnp.transpose(x, (1, 2, 3, 0)))


def case(batch, side, channels):
    def args():
        kernels = normal(0, 6, channels, 5, 5) / 8, normal(1, 16, 6, 5, 5) / 12
        return [(kernel, normal(2, len(kernel))) for kernel in kernels], normal(9, batch, channels, side, side)

    name = f"{batch} images of {side} x {side} x {channels}"
    return Case(name, network("NCHW"), {"images last": ag.optimize(last)}, args, (0,), grad_bounds=AS_LAST)


CASES = (case(128, 32, 3), case(64, 24, 3), case(256, 28, 2))
