"""Claim: a sum costs what computing its numbers costs, also with weights and where something is computed of it.

XLA's library takes some weighted sums for products of matrices, and is slow where it goes on with many sums. By hand
nothing but a sum that is no product is given to it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=1.3)
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)


def alone(total):
    """A selection behind a sum, which the library has none of."""
    always = lax.optimization_barrier(np.asarray(True))
    return lax.select(lax.broadcast(always, total.shape), total, jnp.zeros_like(total))


def summed(x):
    """Along the last axis, and no product of matrices."""
    zero = lax.optimization_barrier(np.asarray(-0.0, x.dtype))
    return jnp.sum(x + lax.broadcast(zero, x.shape), -1)


def kernel_by_vmap(x, y, precision):
    of_two = lambda a, b: jnp.exp(-0.5 * jnp.sum(precision * (a - b) ** 2))  # noqa: E731
    return jax.vmap(lambda a: jax.vmap(lambda b: of_two(a, b))(y))(x)


def kernel_by_hand(x, y, precision):
    return jnp.exp(-0.5 * alone(summed(precision * (x[:, None] - y) ** 2)))


def rows(k):
    return normal(k, 60_000, 96)


CASES = (
    Case(
        "a kernel with a precision for each coordinate",
        kernel_by_vmap,
        {"apart": kernel_by_hand},
        lambda: (normal(0, 700, 50), normal(1, 600, 50), 0.1 + abs(normal(2, 50))),
        grad=(0, 1, 2),
        bounds=BOUNDS,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "weighted distances",
        lambda x, y, w: jnp.sum(jnp.abs(x[:, None] - y) * w, -1),
        {"no product": lambda x, y, w: summed(jnp.abs(x[:, None] - y) * w)},
        lambda: (normal(0, 300, 100), normal(1, 350, 100), abs(normal(2, 100))),
        bounds=BOUNDS,
    ),
    Case(
        "additive attention",
        lambda q, k, v: jax.nn.softmax(jnp.sum(v * jnp.tanh(q[:, :, None] + k[:, None]), -1), -1),
        {"no product": lambda q, k, v: jax.nn.softmax(summed(v * jnp.tanh(q[:, :, None] + k[:, None])), -1)},
        lambda: (normal(0, 8, 60, 64), normal(1, 8, 60, 64), normal(2, 64)),
        grad=(0, 1, 2),
        bounds=NEVER_SLOWER,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "mean sizes of 60,000 rows",
        lambda x: jnp.mean(jnp.abs(x), -1),
        {"alone": lambda x: alone(jnp.sum(jnp.abs(x), -1)) / 96},
        lambda: (rows(0),),
        grad=(0,),
        bounds=BOUNDS,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "distances of 60,000 rows",
        lambda x, y: jnp.linalg.norm(x - y, axis=-1),
        {"alone": lambda x, y: jnp.sqrt(alone(jnp.sum((x - y) ** 2, -1)))},
        lambda: (rows(0), rows(1)),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "deviations of 60,000 rows",
        lambda x: jnp.std(x, -1),
        {"alone": lambda x: jnp.sqrt(alone(jnp.sum((x - jnp.mean(x, -1, keepdims=True)) ** 2, -1)) / 96)},
        lambda: (rows(0),),
        grad=(0,),
        bounds=BOUNDS,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "factorisation machines, 60,000 rows",
        lambda x, y: jax.nn.sigmoid(0.5 * (jnp.sum(x * y, -1) ** 2 - jnp.sum(x * x * y * y, -1))),
        {
            "alone": lambda x, y: jax.nn.sigmoid(
                0.5 * (alone(jnp.sum(x * y, -1)) ** 2 - alone(jnp.sum(x * x * y * y, -1)))
            )
        },
        lambda: (rows(0), rows(1)),
        bounds=BOUNDS,
    ),
    Case(
        "normalised rows",
        lambda x: x / (1e-6 + jnp.sum(jnp.abs(x), -1, keepdims=True)),
        {"as it stands": lambda x: x / (1e-6 + jnp.sum(jnp.abs(x), -1, keepdims=True))},
        lambda: (rows(0),),
        grad=(0,),
        bounds=NEVER_SLOWER,
        grad_bounds=NEVER_SLOWER,
    ),
)
