"""Sorting by integers: 64 bits that hold a key and the place where it stood; of many numbers alone their own bits."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .anywhere import anywhere
from .on import on
from .places import bits_of, or_sorted, sort_key, spread, taken
from .site import Site

# Measured borders: docs/reference/catalogue-order.md.
SHORTEST = 4  # elements along the axis
FEWEST_UNSTABLE = 64  # elements: below, the branch takes longer to start than the sort takes
MANY = 1 << 18  # elements, of which places would be 2 MB
_PLACE_BITS = 32


def sort_by_places(operands: Sequence[jax.Array], dimension: int) -> list[jax.Array]:
    """`lax.sort(operands, dimension, num_keys=1)`, bit for bit.

    XLA on CPU sorts one array of integers by a loop that is compiled for it, and anything else by calls of a
    comparison through a pointer: 4 to 9 times slower. Key and place in one integer are sorted fast and, since no two
    are equal, as a stable sort would; the operands are then gathered from their places.

    Args:
        operands: the first is the key: of 8, 16 or 32 bits, not complex.
        dimension: the axis; shorter than 2^31.
    """
    key = sort_key(operands[0])
    with jax.enable_x64(True):  # for these few equations, also where the user's program has none of 64 bits
        wide = lax.convert_element_type(key, np.int64)
        place = lax.broadcasted_iota(np.int64, key.shape, dimension)
        packed = lax.bitwise_or(lax.shift_left(wide, lax.full_like(wide, _PLACE_BITS)), place)
        ordered = lax.sort(packed, dimension, is_stable=False)
        places = lax.convert_element_type(ordered, np.int32)
    return [taken(x, places, dimension) for x in operands]


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def sort_by_bits(x: jax.Array, dimension: int, is_stable: bool) -> jax.Array:
    """`lax.sort(x, dimension)` of floats alone, bit for bit, without places for them in memory.

    Equal numbers with equal bits need none. Where nans differ in their bits, or zeros in their signs, JAX's sort runs.

    Args:
        x: floats of 16 or 32 bits.
    """
    bits = bits_of(x)
    least, largest = (lax.full_like(bits, k) for k in (np.iinfo(bits.dtype).min, np.iinfo(bits.dtype).max))
    is_nan = lax.ne(x, x)
    nan = jnp.max(lax.select(is_nan, bits, least))
    other_nans = jnp.any(is_nan & lax.ne(bits, lax.full_like(bits, nan)))
    two_zeros = jnp.any(lax.eq(bits, least)) & jnp.any(lax.eq(bits, lax.full_like(bits, 0)))

    def turned(bits: jax.Array) -> jax.Array:
        # The bits of negative numbers count the wrong way round.
        return lax.select(lax.lt(bits, lax.full_like(bits, 0)), lax.bitwise_xor(bits, largest), bits)

    def fast(x: jax.Array) -> jax.Array:
        keys = lax.select(lax.ne(x, x), largest, turned(bits_of(x)))
        ordered = lax.sort(keys, dimension, is_stable=False)
        found = lax.select(lax.eq(ordered, largest), lax.full_like(ordered, nan), turned(ordered))
        return lax.bitcast_convert_type(found, x.dtype)

    return lax.cond(
        anywhere(other_nans | two_zeros), partial(lax.sort, dimension=dimension, is_stable=is_stable), fast, x
    )


@sort_by_bits.defjvp
def _sort_tangent(
    dimension: int, is_stable: bool, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return jax.jvp(partial(lax.sort, dimension=dimension, is_stable=is_stable), primals, tangents)


@on(
    lax.sort_p,
    stage="final",
    platforms=("cpu",),
    exactness="bitwise",
    reason="XLA sorts one array of integers by a loop of its own, all else by calls of a comparison",
    name="sort-by-places",
)
def sort_places(
    *operands: jax.Array, dimension: int, is_stable: bool, num_keys: int, site: Site
) -> list[jax.Array] | str:
    """A sort with one key."""
    refused = cannot_sort(operands, dimension, is_stable, num_keys) or spread(site)
    if refused is not None:
        return refused
    if len(operands) == 1 and operands[0].size >= MANY:
        return [sort_by_bits(operands[0], dimension, is_stable)]
    if is_stable:
        return sort_by_places(operands, dimension)
    # Of one array alone, in which equal numbers have equal bits, their order is no question.
    return [
        or_sorted(
            operands[0],
            lambda x: sort_by_places([x], dimension)[0],
            lambda x: lax.sort(x, dimension, is_stable=False),
        )
    ]


def cannot_sort(operands: Sequence[Any], dimension: int, is_stable: bool, num_keys: int) -> str | None:
    """Why `sort_by_places` is not used; None where it is."""
    key = operands[0]
    if num_keys != 1:
        return f"it has {num_keys} keys"
    if not (jnp.issubdtype(key.dtype, jnp.number) or key.dtype == np.bool_) or jnp.iscomplexobj(key):
        return f"a key of {key.dtype} has no order as an integer"
    if key.dtype.itemsize > 4:
        return "a key of 64 bits leaves no room for the place"
    if len(operands) == 1 and not jnp.issubdtype(key.dtype, jnp.floating):
        return "XLA sorts one array of integers fast"
    if not is_stable and len(operands) > 1:
        return "which of two equal keys comes first is not said"
    if not is_stable and key.size < FEWEST_UNSTABLE:
        return f"{key.size} elements in any order among equals, fewer than {FEWEST_UNSTABLE}"
    if key.shape[dimension] < SHORTEST:
        return f"{key.shape[dimension]} elements, fewer than {SHORTEST}"
    if key.shape[dimension] >= 2**31:
        return "a place takes more than 31 bits"
    return None
