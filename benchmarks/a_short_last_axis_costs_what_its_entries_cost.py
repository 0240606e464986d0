"""Claim: reductions over a last axis of a few entries cost what the sum of those entries costs.

Norms, maxima and dot products of 200,000 points, distances of all pairs of 1,000 points.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

COUNT = 200_000


def fold(f, entries):
    return functools.reduce(f, entries)


def columns(x):
    return [x[..., k] for k in range(x.shape[-1])]


def case(name, natural, hand, *shapes, speedup=2.0):
    return Case(
        name,
        natural,
        {"entry by entry": hand},
        lambda: tuple(normal(k, *shape) for k, shape in enumerate(shapes)),
        grad=tuple(range(len(shapes))),
        bounds=Bounds(over_hand=1.10, speedup=speedup),
        grad_bounds=Bounds(over_hand=None, memory_over_hand=None),
    )


def distances(p):
    return jnp.sum((p[:, None] - p[None]) ** 2, -1)


def distances_by_hand(p):
    return fold(jnp.add, [(x[:, None] - x[None]) ** 2 for x in columns(p)])


def kernel_by_norms(x, y):
    return jnp.exp(-(jnp.sum(x**2, -1)[:, None] + jnp.sum(y**2, -1) - 2 * x @ y.T) / 8)


def beside_a_product(name, *shapes):
    """Sums that are faster left to the library call of the product beside them, which is how an expert has it, too."""
    args = lambda: tuple(normal(k, *shape) for k, shape in enumerate(shapes))  # noqa: E731
    return Case(name, kernel_by_norms, {"as it stands": kernel_by_norms}, args, bounds=Bounds(over_hand=None))


CASES = (
    case(
        "norms in space",
        lambda x: jnp.linalg.norm(x, axis=-1),
        lambda x: jnp.sqrt(fold(jnp.add, [c * c for c in columns(x)])),
        (COUNT, 3),
    ),
    case(
        "dot products of 4",
        jax.vmap(lambda x, y: jnp.sum(x * y)),
        lambda x, y: fold(jnp.add, [a * b for a, b in zip(columns(x), columns(y), strict=True)]),
        (COUNT, 4),
        (COUNT, 4),
    ),
    case("maxima of 3", lambda x: jnp.max(x, -1), lambda x: fold(jnp.maximum, columns(x)), (COUNT, 3)),
    case("distances of all pairs", distances, distances_by_hand, (1000, 3), speedup=4.0),
    beside_a_product("kernel by norms, 1,500 x 1,200 points in 8 dimensions", (1500, 8), (1200, 8)),
    beside_a_product("kernel by norms, 4,000 x 4,000 points in 3 dimensions", (4000, 3), (4000, 3)),
)
