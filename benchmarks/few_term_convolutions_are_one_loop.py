"""Claim: convolutions of few terms (depthwise ones, and those of one channel) take a third of XLA's time, at most.

The expert form is the sum of shifted products of the catalogue's row 24; its gradient is JAX's own. Convolutions of few
channels go row by row, a product of matrices for each, in half of XLA's time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

THIRD = Bounds(over_hand=1.10, speedup=3.0, memory_over_hand=None)
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)
HALF = Bounds(over_hand=1.10, speedup=2.0, memory_over_hand=None)
FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def conv(layout, groups=1, padding="SAME", rank=2):
    def f(x, w):
        return lax.conv_general_dilated(
            x, w, (1,) * rank, padding, dimension_numbers=layout, feature_group_count=groups
        )

    return f


def depthwise_first(x, w):
    rows, columns = x.shape[2:]
    p = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    terms = (
        p[:, :, i : i + rows, j : j + columns] * w[None, :, 0, i, j, None, None] for i in range(3) for j in range(3)
    )
    return sum(terms)


def depthwise_last(x, w):
    rows, columns = x.shape[1:3]
    p = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sum(p[:, i : i + rows, j : j + columns] * w[i, j, 0] for i in range(3) for j in range(3))


def causal(x, w):
    steps = x.shape[1]
    return sum(jnp.pad(x, ((0, 0), (1, 2), (0, 0)))[:, i : i + steps] * w[i, 0] for i in range(4))


def convolved(x, k):
    return sum(jnp.pad(x, 2)[i : i + x.size] * k[4 - i] for i in range(5))


def image(x, k):
    rows, columns = x.shape
    return sum(jnp.pad(x, 1)[i : i + rows, j : j + columns] * k[2 - i, 2 - j] for i in range(3) for j in range(3))


def lenet(x, w):
    rows, columns = x.shape[2] - 4, x.shape[3] - 4
    return sum(x[:, :, i : i + rows, j : j + columns] * w[:, 0, i, j, None, None] for i in range(5) for j in range(5))


def shifted(x, w):
    """Every input channel at every place of the kernel, channels first, without padding."""
    rows, columns = (n - 4 for n in x.shape[2:])
    places = [(c, i, j) for c in range(x.shape[1]) for i in range(5) for j in range(5)]
    return sum(x[:, c, None, i : i + rows, j : j + columns] * w[:, c, i, j, None, None] for c, i, j in places)


def by_rows(x, w):
    """A row of the output at a time: its windows, batch last, times the kernel. XLA copies dynamic slices as runs."""
    batch, channels, rows, columns = x.shape
    outputs, made = w.shape[0], (rows - 4, columns - 4)
    x, w = jnp.transpose(x, (1, 2, 3, 0)), jnp.transpose(w, (0, 3, 1, 2)).reshape(outputs, -1)

    def row(i, out):
        parts = [lax.dynamic_slice(x, (0, i, j, 0), (channels, 5, made[1], batch)) for j in range(5)]
        here = w @ jnp.concatenate(parts).reshape(channels * 25, -1)
        return lax.dynamic_update_slice_in_dim(out, here.reshape(outputs, 1, made[1], batch), i, 1)

    out = lax.fori_loop(0, made[0], row, jnp.zeros((outputs, *made, batch)))
    return jnp.transpose(out, (3, 0, 1, 2))


def as_patches(x, w):
    """The windows of all rows, as one product."""
    patches = lax.conv_general_dilated_patches(x, w.shape[2:], (1, 1), "VALID", dimension_numbers=FIRST)
    return jnp.einsum("ok,bkij->boij", w.reshape(w.shape[0], -1), patches)


def of_channels(name, *shapes):
    """A first layer of few channels."""
    forms = {"shifted products": shifted, "row by row": by_rows, "patches": as_patches}
    return Case(name, conv(FIRST, 1, "VALID"), forms, arguments(*shapes), (0, 1), bounds=HALF, grad_bounds=NEVER_SLOWER)


def arguments(*shapes):
    return lambda: tuple(normal(k, *shape) for k, shape in enumerate(shapes))


def case(name, natural, hand, *shapes):
    more = {"bounds": THIRD, "grad_bounds": NEVER_SLOWER}
    return Case(name, natural, {"shifted products": hand}, arguments(*shapes), (0, 1), **more)


CASES = (
    case("depthwise 3 x 3, channels first", conv(FIRST, 64), depthwise_first, (8, 64, 32, 32), (64, 1, 3, 3)),
    case("depthwise 3 x 3, channels last", conv(LAST, 64), depthwise_last, (8, 32, 32, 64), (3, 3, 1, 64)),
    case("depthwise over time", conv(("NWC", "WIO", "NWC"), 256, "SAME", 1), causal, (8, 512, 256), (4, 1, 256)),
    case("jnp.convolve, five terms", lambda x, k: jnp.convolve(x, k, mode="same"), convolved, (100_000,), (5,)),
    case(
        "scipy.signal.convolve2d, 3 x 3",
        lambda x, k: jax.scipy.signal.convolve2d(x, k, mode="same"),
        image,
        (512, 512),
        (3, 3),
    ),
    case("LeNet's first layer", conv(FIRST, 1, "VALID"), lenet, (128, 1, 28, 28), (6, 1, 5, 5)),
    of_channels("LeNet's first layer, three channels", (128, 3, 32, 32), (6, 3, 5, 5)),
)
