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


def entropy(x):
    return -(jax.nn.softmax(x) * jax.nn.log_softmax(x)).sum(-1)


def divergence(x, y):
    return (jax.nn.softmax(x) * (jax.nn.log_softmax(x) - jax.nn.log_softmax(y))).sum(-1)


def shares(x):
    """Shares of classes and their logarithms, class by class."""
    entries = columns(x)
    most = fold(jnp.maximum, entries)
    exps = [jnp.exp(c - most) for c in entries]
    total = fold(jnp.add, exps)
    return [e / total for e in exps], [c - most - jnp.log(total) for c in entries]


def entropy_by_hand(x):
    return -fold(jnp.add, [p * log for p, log in zip(*shares(x), strict=True)])


def divergence_by_hand(x, y):
    return fold(jnp.add, [p * (a - b) for p, a, b in zip(*shares(x), shares(y)[1], strict=True)])


def mixture(x, centres, widths):
    return jax.nn.logsumexp(-0.5 * ((x[:, None] - centres) / widths) ** 2 - jnp.log(widths), -1)


def mixture_by_hand(x, centres, widths):
    parts = [-0.5 * ((x - c) / w) ** 2 - jnp.log(w) for c, w in zip(centres, widths, strict=True)]
    most = fold(jnp.maximum, parts)
    return most + jnp.log(fold(jnp.add, [jnp.exp(part - most) for part in parts]))


def shared(name, natural, hand, *shapes):
    """Sums that share what is dear, which an expert makes once; XLA's library stores none of it, so memory grows."""
    args = lambda: tuple(1 + normal(k, *shape) ** 2 for k, shape in enumerate(shapes))  # noqa: E731
    return Case(name, natural, {"entry by entry": hand}, args, bounds=Bounds(1.10, speedup=1.3, memory_over_hand=None))


def overlaps(centre, half):
    """How much the boxes of a plane overlap, of all pairs."""
    low, high = centre - half, centre + half
    return jnp.prod(jnp.clip(jnp.minimum(high[:, None], high[None]) - jnp.maximum(low[:, None], low[None]), 0), -1)


def overlaps_by_hand(centre, half):
    pairs = zip(columns(centre - half), columns(centre + half), strict=True)
    sides = [jnp.minimum(b[:, None], b[None]) - jnp.maximum(a[:, None], a[None]) for a, b in pairs]
    return fold(jnp.multiply, [jnp.maximum(side, 0) for side in sides])


def crosses(p):
    """Cross products of all pairs, summed up: one loop over all three entries, which is how XLA has it."""
    return jnp.cross(p[:, None] - p[None], 2 * p[:, None] - p[None]).sum(1)


CASES = (
    shared("entropies of 3", entropy, entropy_by_hand, (100_002, 3)),
    shared("entropies of 6", entropy, entropy_by_hand, (100_002, 6)),
    shared("entropies of 3, an odd number", entropy, entropy_by_hand, (100_003, 3)),
    shared("divergences of 3", divergence, divergence_by_hand, (100_002, 3), (100_002, 3)),
    shared("divergences of 6", divergence, divergence_by_hand, (100_002, 6), (100_002, 6)),
    shared("densities of a mixture of three", mixture, mixture_by_hand, (100_002,), (3,), (3,)),
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
    case("overlaps of all boxes", overlaps, overlaps_by_hand, (1000, 2), (1000, 2), speedup=None),
    Case(
        "cross products of all pairs",
        crosses,
        {"as it stands": crosses},
        lambda: (normal(0, 700, 3),),
        bounds=Bounds(over_hand=None),
    ),
    beside_a_product("kernel by norms, 1,500 x 1,200 points in 8 dimensions", (1500, 8), (1200, 8)),
    beside_a_product("kernel by norms, 4,000 x 4,000 points in 3 dimensions", (4000, 3), (4000, 3)),
)
