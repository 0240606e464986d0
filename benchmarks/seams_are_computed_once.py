"""Claim: what paddings and rolls read is computed once, and not for each side of a seam.

The gradient of differences is a sum of paddings, into each of which XLA fuses what they read, as scalar code. An expert
keeps it from doing so by a branch that is always taken, which XLA cannot know.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.1, speedup=2.0, memory_over_hand=1.1)


def roughness(x):
    return sum(jnp.sum(jnp.sqrt(1 + jnp.diff(x, axis=a) ** 2)) for a in range(x.ndim))


def roughness_by_hand(x):
    """The gradient, by its formula: what flows back from each difference is stored."""

    def flows(x):
        differences = (jnp.diff(x, axis=a) for a in range(x.ndim))
        return [d * lax.rsqrt(1 + d * d) for d in differences]

    def nothing(x):
        return [jnp.zeros_like(y) for y in jax.eval_shape(flows, x)]

    total = jnp.zeros_like(x)
    for a, y in enumerate(lax.cond(x.ravel()[0] <= jnp.inf, flows, nothing, x)):
        before, after = ([(pad if d == a else (0, 0)) for d in range(x.ndim)] for pad in ((1, 0), (0, 1)))
        total += jnp.pad(y, before) - jnp.pad(y, after)
    return total


def limited(x):
    """Periodic differences of a saturated flux."""
    y = x * lax.rsqrt(1 + x * x)
    return jnp.roll(y, 1, -1) + jnp.roll(y, -1, -1) - 2 * y


def limited_by_hand(x):
    y = lax.cond(x.ravel()[0] <= jnp.inf, lambda x: x * lax.rsqrt(1 + x * x), jnp.zeros_like, x)
    return jnp.roll(y, 1, -1) + jnp.roll(y, -1, -1) - 2 * y


def gradient(name, *shape):
    return Case(
        name,
        jax.grad(roughness),
        {"stored by a branch": roughness_by_hand},
        lambda: (normal(0, *shape),),
        bounds=BOUNDS,
    )


CASES = (
    gradient("roughness of an image", 512, 512),
    gradient("roughness of an oblong image", 1000, 300),
    gradient("roughness of a volume", 64, 64, 64),
    Case(
        "a saturated flux, periodic",
        limited,
        {"stored by a branch": limited_by_hand},
        lambda: (normal(0, 1_000_000),),
        bounds=Bounds(over_hand=1.1, speedup=1.5, memory_over_hand=1.1),
    ),
)
