"""Claim: `argmax` and `argmin` cost little more than reductions to the extrema of blocks.

The expert form is given numbers without nan and looks at blocks alone: `jnp.max` per block, then inside of the best.
Aerogel also sums the blocks, since `jnp.max` drops nan on CPU in jaxlib 0.10.2 and `argmax` does not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=1.5)
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)


def with_nan_in_mind(width, axis=-1):
    """Extrema of blocks; those with a nan count as nan."""

    def argmax(x):
        at = axis % x.ndim
        blocks = x.reshape(*x.shape[:at], -1, width, *x.shape[at + 1 :])
        best = jnp.where(jnp.any(blocks != blocks, at + 1), jnp.nan, jnp.max(blocks, at + 1))
        block = lax.argmax(best, at, np.int32)
        inside = jnp.take_along_axis(blocks, jnp.expand_dims(block, (at, at + 1)), at, mode="promise_in_bounds")
        return block * width + lax.argmax(lax.squeeze(inside, (at,)), at, np.int32)

    return argmax


def rows(axis):
    return lambda x: jnp.argmax(x, axis)


CASES = (
    Case("one axis", jnp.argmax, {"blocks": with_nan_in_mind(2000)}, lambda: (normal(0, 4_000_000),), bounds=BOUNDS),
    Case("square, rows", rows(1), {"blocks": with_nan_in_mind(50)}, lambda: (normal(1, 2000, 2000),), bounds=BOUNDS),
    Case(
        "square, columns", rows(0), {"blocks": with_nan_in_mind(50, 0)}, lambda: (normal(1, 2000, 2000),), bounds=BOUNDS
    ),
    Case("vocabulary", rows(1), {"blocks": with_nan_in_mind(200)}, lambda: (normal(2, 64, 32000),), bounds=BOUNDS),
    Case(
        "vocabulary of 50257",
        jax.vmap(jnp.argmin),
        {"blocks": lambda x: with_nan_in_mind(29)(-x)},
        lambda: (normal(3, 8, 50257),),
        bounds=BOUNDS,
    ),
    Case(
        "a draw from logits",
        lambda x: jax.random.categorical(jax.random.key(0), x),
        {"as it stands": lambda x: jax.random.categorical(jax.random.key(0), x)},
        lambda: (normal(4, 64, 1000),),
        bounds=NEVER_SLOWER,
    ),
    Case("at the border", rows(1), {"as it stands": rows(1)}, lambda: (normal(5, 64, 64),), bounds=NEVER_SLOWER),
    Case(
        "integers",
        rows(1),
        {"as it stands": rows(1)},
        lambda: (jnp.arange(10**6).reshape(1000, -1) % 7919,),
        bounds=NEVER_SLOWER,
    ),
)
