"""Rows 12 to 17: the Flux models of Mooncake.jl's issue 361 and Enzyme.jl's issue 2069, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ._row import Row, normal

IMAGES = (128, 1, 28, 28)
MLP = ((784, 32), (32,), (32, 10), (10,))
LENET = ((6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (256, 120), (120,), (120, 84), (84,), (84, 10), (10,))


def mlp(w1, b1, w2, b2, images):
    hidden = jnp.tanh(images.reshape(len(images), -1) @ w1 + b1)
    return jnp.sum((hidden @ w2 + b2) ** 2)


def conv(kernel, bias, images):
    return jax.nn.relu(jax.lax.conv(images, kernel, (1, 1), "VALID") + bias[:, None, None])


def max_pool(images):
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def lenet(k1, c1, k2, c2, w1, b1, w2, b2, w3, b3, images):
    features = max_pool(conv(k2, c2, max_pool(conv(k1, c1, images)))).reshape(len(images), -1)
    hidden = jax.nn.relu(jax.nn.relu(features @ w1 + b1) @ w2 + b2)
    return jnp.sum((hidden @ w3 + b3) ** 2)


def images():
    return normal(IMAGES)


def of_model(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Parameters that keep the scale of what they get, and images."""
    scaled = (x / np.sqrt(max(1, x[0].size if x.ndim == 4 else len(x))) for x in normal(*shapes))
    return (*(x.astype(np.float32) for x in scaled), *images())


def sum_of_squares(x):
    return jnp.sum(x**2)


ROWS = (
    Row(12, "sum_abs2", sum_of_squares, images, (60, 66)),
    # against the figures for a long last axis, which are those of an array of one axis
    Row(12, "sum_abs2, prepared", sum_of_squares, lambda: (images()[0].ravel(),), (29, 33), prepared=True),
    Row(13, "sum_atan", lambda x: jnp.sum(jnp.arctan(x)), images, (125, 1163)),
    Row(14, "sum_sin", lambda x: jnp.sum(jnp.sin(x)), images, (120, 1415)),
    Row(15, "mlp", mlp, lambda: of_model(*MLP), (200, 276), wrt=(0, 1, 2, 3)),
    Row(15, "mlp_dx", mlp, lambda: of_model(*MLP), (340, 387), wrt=(0, 1, 2, 3, 4), published=3.49),
    Row(16, "lenet", lenet, lambda: of_model(*LENET), (6000, 20300), wrt=tuple(range(10))),
    Row(17, "lenet_dx", lenet, lambda: of_model(*LENET), (8000, 34500), wrt=tuple(range(11))),
)
LARGE = Row(22, "40 MB, prepared", sum_of_squares, lambda: normal((10_000_000,)), (6.1, 24.9), prepared=True)
