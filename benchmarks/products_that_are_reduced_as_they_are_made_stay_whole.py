"""Claim: products of points that XLA's library reduces as it makes them cost what they cost as they stand.

Blocks of them took up to 2.5 times as long. Where sums of squares are added (distances by a product) there are few
blocks, and the expert's are a `lax.map` over four.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, memory_over_hand=None)


def least(x, y):
    return (x @ y.T).min(1)


def exponentials(x, y):
    return jnp.exp(x @ y.T / 4).sum(1)


def kernel_sums(x, y):
    return jnp.exp(2 * x @ y.T - (x * x).sum(1)[:, None] - (y * y).sum(1)).sum(1)


def in_blocks(f):
    """Of four parts of the first points."""
    return lambda x, y: lax.map(lambda part: f(part, y), x.reshape(4, -1, x.shape[-1])).reshape(-1)


def points(m, n, k):
    return lambda: (normal(0, m, k), normal(1, n, k))


def case(name, f, by_hand, *sizes):
    return Case(name, f, by_hand, points(*sizes), bounds=BOUNDS)


CASES = (
    case("least products", least, {"as it stands": least}, 8000, 4160, 3),
    case("sums of exponentials", exponentials, {"as it stands": exponentials}, 8000, 4160, 3),
    case("least products, 8 dimensions", least, {"as it stands": least}, 8000, 4160, 8),
    case("kernel sums", kernel_sums, {"four blocks": in_blocks(kernel_sums)}, 8000, 4160, 3),
    case("kernel sums, 8 dimensions", kernel_sums, {"four blocks": in_blocks(kernel_sums)}, 4000, 8192, 8),
)
