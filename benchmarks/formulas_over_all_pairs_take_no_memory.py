"""Claim: a formula over all pairs of N = M = 8192 things takes the time and memory of the blocks that an expert cuts.

Memory at most 1/30 of plain JAX's for the value and 1/15 for value and gradient, time at most 0.85 and 1.05 (issue 5).
The expert's forms map over blocks of rows under `jax.checkpoint`, with coordinates taken apart. Where plain JAX's value
alone has no array in its temporary memory (it fuses, or keeps it to itself), there is no bound on memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case

N = 8192


def points():
    keys = jax.random.split(jax.random.key(0), 3)
    return *(jax.random.normal(key, (N, 3)) for key in keys[:2]), jax.random.normal(keys[2], (N,))


def tokens():
    return tuple(0.3 * jax.random.normal(key, (N, 64)) for key in jax.random.split(jax.random.key(1), 3))


def squared(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def apart(x, y):
    return sum((x[:, None, k] - y[None, :, k]) ** 2 for k in range(3))


def by_rows(f, size):
    """`f(rows, y, v)` for blocks of rows."""

    def whole(x, y, v):
        out = lax.map(jax.checkpoint(lambda rows: f(rows, y, v)), x.reshape(-1, size, x.shape[1]))
        return out.reshape(N, *out.shape[2:])

    return whole


def gaussian(distance):
    return lambda x, y, v: jnp.exp(-0.5 * distance(x, y)) @ v


def nearest(distance):
    return lambda x, y, v: distance(x, y).min(1)


def forces(x, y, v):
    d = y[None] - x[:, None]
    return (d * (v[None] / ((d**2).sum(-1) + 1e-2))[..., None]).sum(1)


def forces_apart(x, y, v):
    d = [y[None, :, k] - x[:, None, k] for k in range(3)]
    w = v[None] / (sum(one**2 for one in d) + 1e-2)
    return jnp.stack([(one * w).sum(1) for one in d], -1)


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / 8, axis=-1) @ v


def case(name, natural, hand, args, size, grad, saving):
    forms = {"blocks of rows": by_rows(hand, size)}
    value = Bounds(over_natural=0.85, memory_over_hand=None, memory_saving=saving)
    gradient = Bounds(over_natural=1.05, memory_over_hand=None, memory_saving=15)
    return Case(name, natural, forms, args, grad, bounds=value, grad_bounds=gradient)


CASES = (
    case("Gaussian kernel times a vector", gaussian(squared), gaussian(apart), points, 64, (0, 1, 2), 30),
    case("nearest neighbour", nearest(squared), nearest(apart), points, 64, (0, 1), None),
    case("N-body forces", forces, forces_apart, points, 64, (0, 1, 2), None),
    case("attention", attention, attention, tokens, 256, (0, 1, 2), None),
)
