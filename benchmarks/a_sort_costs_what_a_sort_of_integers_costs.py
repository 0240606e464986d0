"""Claim: a sort costs what a sort of integers costs, and a few of its elements what a selection costs.

XLA on CPU sorts one array of integers by a loop that is compiled for it, and anything else by calls of a comparison.
The expert form packs key and place into one integer of 64 bits by hand. It is given float32 numbers without nan and
without -0, and need not care for them; Aerogel's has to.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=2.0)
# Whether there is a nan or a -0 is another pass over the array, and an array of bools.
SELECTED = Bounds(over_hand=None, speedup=5.0, memory_over_hand=None)


def keys(x):
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def places(x, axis=-1):
    with jax.enable_x64(True):
        place = lax.broadcasted_iota(np.int64, x.shape, axis % x.ndim)
        packed = (keys(x).astype(np.int64) << lax.full_like(place, 32)) | place
        return lax.sort(packed, axis % x.ndim, is_stable=False).astype(np.int32)


def by_places(x, axis=-1):
    return jnp.take_along_axis(x, places(x, axis), axis, mode="promise_in_bounds")


def by_bits(x):
    """Sorted as integers, and back."""
    ordered = lax.sort(keys(x), is_stable=False)
    return lax.bitcast_convert_type(jnp.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered), jnp.float32)


def shuffled(key):
    """`jax.random.permutation` with the packed sort, three rounds of bits as JAX draws them."""
    x = jnp.arange(100_000, dtype=jnp.int32)
    for _ in range(2):
        key, now = jax.random.split(key)
        bits = lax.bitcast_convert_type(jax.random.bits(now, x.shape), jnp.int32) ^ jnp.int32(-(2**31))
        with jax.enable_x64(True):
            place = lax.iota(np.int64, x.size)
            packed = (bits.astype(np.int64) << lax.full_like(place, 32)) | place
            order = lax.sort(packed, is_stable=False).astype(np.int32)
        x = x[order]
    return x


CASES = (
    Case("sort, floats alone", jnp.sort, {"bits": by_bits}, lambda: (normal(0, 400_000),), bounds=BOUNDS),
    Case("sort, one axis", jnp.sort, {"packed": by_places}, lambda: (normal(0, 1_000_000),), bounds=BOUNDS),
    Case(
        "sort rows",
        jnp.sort,
        {"packed": by_places},
        lambda: (normal(0, 1000, 1000),),
        (0,),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    Case("argsort rows", jnp.argsort, {"packed": places}, lambda: (normal(1, 1000, 1000),), bounds=BOUNDS),
    Case(
        "argsort columns",
        lambda x: jnp.argsort(x, 0),
        {"packed": lambda x: places(x, 0)},
        lambda: (normal(2, 1000, 300),),
        bounds=BOUNDS,
    ),
    Case("argsort short rows", jnp.argsort, {"packed": places}, lambda: (normal(3, 50_000, 8),), bounds=BOUNDS),
    Case(
        "random permutation",
        lambda key: jax.random.permutation(key, 100_000),
        {"packed": shuffled},
        lambda: (jax.random.key(0),),
        bounds=BOUNDS,
    ),
    Case(
        "smallest of a sort",
        lambda x: jnp.sort(x)[0],
        {"min": jnp.min},
        lambda: (normal(4, 300_000),),
        bounds=SELECTED,
    ),
    Case(
        "last ten of a sort",
        lambda x: jnp.sort(x, -1)[:, -10:],
        {"top_k": lambda x: lax.top_k(x, 10)[0][:, ::-1]},
        lambda: (normal(5, 300, 1000),),
        bounds=SELECTED,
    ),
    Case(
        "first ten of an argsort",
        lambda x: jnp.argsort(-x)[:10],
        {"top_k": lambda x: lax.top_k(x, 10)[1]},
        lambda: (normal(6, 300_000),),
        bounds=SELECTED,
    ),
    Case(
        "last ten of an argsort",
        lambda x: jnp.argsort(x)[-10:],
        {"top_k": lambda x: lax.top_k(x, 10)[1][::-1]},
        lambda: (normal(7, 300_000),),
        bounds=SELECTED,
    ),
    Case(
        "first ten of an argsort downwards",
        lambda x: jnp.argsort(x, descending=True)[:10],
        {"top_k": lambda x: lax.top_k(x, 10)[1]},
        lambda: (normal(8, 300_000),),
        bounds=SELECTED,
    ),
)
