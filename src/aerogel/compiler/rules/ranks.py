"""Where the entry of a given rank stands, without a sort: by halves of the keys' bits, each of which counts once.

An entry's rank is its place in a stable sort: of equal entries those in front have the lower ranks. Keys are integers
(`sort_key`), so what is found is what a sort puts there, bit for bit: also nan, zeros of both signs and ties.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..record import record
from .anywhere import anywhere
from .places import has_several, number_of, taken


@record
class Ranked:
    """The entries of one rank: of each row along an axis, which stays with a length of one."""

    key: jax.Array
    place: jax.Array


def lowest_rank(keys: jax.Array, axis: int) -> Ranked:
    """The first entry of a stable sort."""
    key = jnp.min(keys, axis, keepdims=True)
    return Ranked(key, _first(lax.eq(keys, _spread(key, keys)), axis))


def highest_rank(keys: jax.Array, axis: int) -> Ranked:
    """The last entry of a stable sort."""
    key = jnp.max(keys, axis, keepdims=True)
    return Ranked(key, _last(lax.eq(keys, _spread(key, keys)), axis))


def of_rank(keys: jax.Array, rank: jax.Array, axis: int) -> Ranked:
    """The entry of any rank: as many passes over the keys as these have bits.

    Args:
        keys: signed integers.
        rank: an int32 scalar, at least 0 and less than the length of the axis.
        axis: at least one long.
    """
    shape = tuple(1 if d == axis else n for d, n in enumerate(keys.shape))
    ranks = lax.broadcast(rank, shape)

    def below(key: jax.Array) -> jax.Array:
        return _count(lax.lt(keys, _spread(key, keys)), axis)

    key = _largest(below, ranks, np.dtype(keys.dtype))
    equal = lax.eq(keys, _spread(key, keys))
    first, last = _first(equal, axis), _last(equal, axis)

    def among_equals(equal: jax.Array) -> jax.Array:
        places = lax.broadcasted_iota(np.int32, keys.shape, axis)

        def before(place: jax.Array) -> jax.Array:
            return _count(lax.bitwise_and(equal, lax.lt(places, _spread(place, keys))), axis)

        which = lax.sub(ranks, below(key))
        return _largest(before, which, np.dtype(np.int32), max(keys.shape[axis], 2).bit_length())

    return Ranked(key, lax.cond(anywhere(first != last), among_equals, lambda equal: first, equal))


def value_of(x: jax.Array, found: jax.Array, place: Callable[[jax.Array], jax.Array], axis: int) -> jax.Array:
    """The entries of a rank, of which the keys are known, bit for bit.

    Args:
        x: what is ranked.
        found: the keys.
        place: the places, of `x`: they are asked for where numbers with different bits have one key.
        axis: of the rows.
    """
    return lax.cond(
        anywhere(has_several(found, x.dtype)),
        lambda x: taken(x, place(x), axis),
        lambda x: number_of(found, x.dtype),
        x,
    )


def next_rank(keys: jax.Array, found: Ranked, axis: int) -> Ranked:
    """The entry behind another one in a stable sort; there is one."""
    places = lax.broadcasted_iota(np.int32, keys.shape, axis)
    n, largest = keys.shape[axis], np.iinfo(keys.dtype).max
    equal = lax.eq(keys, _spread(found.key, keys))
    behind = _first(lax.bitwise_and(equal, lax.gt(places, _spread(found.place, keys))), axis)
    above = lax.gt(keys, _spread(found.key, keys))
    key = jnp.min(jnp.where(above, keys, np.asarray(largest, keys.dtype)), axis, keepdims=True)
    first = _first(lax.bitwise_and(above, lax.eq(keys, _spread(key, keys))), axis)
    is_equal = lax.lt(behind, lax.full_like(behind, n))
    return Ranked(lax.select(is_equal, found.key, key), lax.select(is_equal, behind, first))


def within(keys: jax.Array, low: Ranked | None, high: Ranked | None, axis: int) -> jax.Array:
    """Which entries stand from one to another one in a stable sort, both of them included; None is no bound."""
    places = lax.broadcasted_iota(np.int32, keys.shape, axis)
    inside = None
    for bound, beyond, not_before in ((low, lax.gt, lax.ge), (high, lax.lt, lax.le)):
        if bound is None:
            continue
        key, place = _spread(bound.key, keys), _spread(bound.place, keys)
        here = lax.bitwise_or(beyond(keys, key), lax.bitwise_and(lax.eq(keys, key), not_before(places, place)))
        inside = here if inside is None else lax.bitwise_and(inside, here)
    assert inside is not None, "without bounds no entry is left out"
    return inside


def _largest(below: Callable[[jax.Array], Any], most: jax.Array, dtype: np.dtype[Any], bits: int = 0) -> jax.Array:
    """The largest number that at most so many are below: bit by bit, from the highest one on.

    Args:
        below: how many are.
        most: how many may be.
        dtype: of the number, signed.
        bits: of a number that is not negative; of any, those of its type.
    """
    unsigned = np.dtype(f"u{dtype}")
    sign = np.asarray(0 if bits else 1 << (8 * dtype.itemsize - 1), unsigned)
    bits = bits or 8 * dtype.itemsize

    def signed(number: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(lax.bitwise_xor(number, lax.full_like(number, sign)), dtype)

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        bit, number = state
        larger = lax.bitwise_or(number, lax.broadcast(bit, number.shape))
        fits = lax.le(below(signed(larger)), most)
        return lax.shift_right_logical(bit, np.asarray(1, unsigned)), lax.select(fits, larger, number)

    start = jnp.asarray(1 << (bits - 1), unsigned), jnp.zeros(most.shape, unsigned)
    return signed(lax.while_loop(lambda state: lax.ne(state[0], np.asarray(0, unsigned)), step, start)[1])


def _count(mask: jax.Array, axis: int) -> jax.Array:
    return jnp.sum(lax.convert_element_type(mask, np.int32), axis, dtype=np.int32, keepdims=True)


def _first(mask: jax.Array, axis: int) -> jax.Array:
    """The place of the first that is true; the length of the axis where none is."""
    places = lax.broadcasted_iota(np.int32, mask.shape, axis)
    return jnp.min(jnp.where(mask, places, np.int32(mask.shape[axis])), axis, keepdims=True)


def _last(mask: jax.Array, axis: int) -> jax.Array:
    """The place of the last that is true; -1 where none is."""
    places = lax.broadcasted_iota(np.int32, mask.shape, axis)
    return jnp.max(jnp.where(mask, places, np.int32(-1)), axis, keepdims=True)


def _spread(x: jax.Array, like: jax.Array) -> jax.Array:
    return lax.broadcast_in_dim(x, like.shape, tuple(range(like.ndim)))
