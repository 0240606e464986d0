"""Places along an axis: the order in which numbers take them, and what stands there."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .anywhere import anywhere
from .site import Site

OfArray = Callable[[jax.Array], jax.Array]
_BITS = {1: np.int8, 2: np.int16, 4: np.int32}


def sort_key(x: jax.Array) -> jax.Array:
    """Signed integers of the size of `x`, ordered and tied as `sort` orders and ties the numbers.

    `sort` puts every nan last, equal to every other, and -0 where 0 is. XLA on CPU compares integers fast, and numbers
    by these rules slowly.

    Args:
        x: floats of 16 or 32 bits, integers of up to 32 or bools.
    """
    dtype = np.dtype(x.dtype)
    if dtype == np.bool_:
        return lax.convert_element_type(x, np.int8)
    bits = _BITS[dtype.itemsize]
    if not jnp.issubdtype(dtype, jnp.floating):
        if dtype.kind == "i":
            return x
        signed = lax.bitcast_convert_type(x, bits)
        return lax.bitwise_xor(signed, _full(signed, np.iinfo(bits).min))
    signed = lax.bitcast_convert_type(x, bits)
    largest = np.iinfo(bits).max
    # The bits of negative numbers count the wrong way round.
    ordered = lax.select(lax.lt(signed, _full(signed, 0)), lax.bitwise_xor(signed, _full(signed, largest)), signed)
    one_zero = lax.select(lax.eq(x, _full(x, 0)), _full(signed, 0), ordered)
    return lax.select(lax.ne(x, x), _full(signed, largest), one_zero)


def number_of(key: jax.Array, dtype: Any) -> jax.Array:
    """The number that has a key: not of the keys of zero and of nan, of which floats have several."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return lax.ne(key, _full(key, 0))
    if not jnp.issubdtype(dtype, jnp.floating):
        if dtype.kind == "i":
            return key
        return lax.bitcast_convert_type(lax.bitwise_xor(key, _full(key, np.iinfo(key.dtype).min)), dtype)
    turned = lax.bitwise_xor(key, _full(key, np.iinfo(key.dtype).max))
    return lax.bitcast_convert_type(lax.select(lax.lt(key, _full(key, 0)), turned, key), dtype)


def has_several(key: jax.Array, dtype: Any) -> jax.Array:
    """Whether numbers of different bits have a key: zeros, and nans."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return lax.full_like(key, False, np.bool_)
    return lax.bitwise_or(lax.eq(key, _full(key, 0)), lax.eq(key, _full(key, np.iinfo(key.dtype).max)))


def bits_of(x: jax.Array) -> jax.Array:
    """The bits of numbers of up to 32 bits, as integers of that size."""
    return lax.bitcast_convert_type(x, _BITS[np.dtype(x.dtype).itemsize])


def _full(like: jax.Array, value: Any) -> jax.Array:
    return lax.full_like(like, value)


def taken(x: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    """The elements of `x` at `places` along an axis; all of them are inside."""
    return jnp.take_along_axis(x, places, axis, mode="promise_in_bounds")


def part(x: jax.Array, axis: int, start: int, stop: int) -> jax.Array:
    """The elements from `start` to `stop` along an axis, as indexing takes them."""
    return x[(*[slice(None)] * (axis % x.ndim), slice(start, stop))]


def spread(site: Site) -> str | None:
    """The reason against cutting an axis up: it may be spread over devices already."""
    return "its values may be spread over devices" if site.over_devices else None


def or_sorted(x: jax.Array, select: OfArray, sort: OfArray) -> jax.Array:
    """What `select` gives; but where there is a nan or a -0, whose place among equals only a sort knows."""
    bits = bits_of(x)
    odd = lax.bitwise_or(lax.ne(x, x), lax.eq(bits, _full(bits, np.iinfo(bits.dtype).min)))
    return lax.cond(anywhere(odd), sort, select, x)


def selected(x: jax.Array, values: jax.Array, found: jax.Array, sort: OfArray) -> jax.Array:
    """What a selection of the largest or smallest found; but what `sort` gives where the order is no question of size.

    A sum is nan if a number is, and zeros of two signs matter only where one is selected. To look at each number for
    both takes a sixth of the time of a selection.

    Args:
        x: floats.
        values: those that were selected.
        found: what is said of them: themselves, or their places.
        sort: finds the same in `x`, whatever its numbers are.
    """
    total = jnp.sum(x)
    doubtful = anywhere(lax.bitwise_or(lax.ne(total, total), jnp.any(lax.eq(values, _full(values, 0)))))
    return lax.cond(doubtful, lambda x, found: or_sorted(x, lambda x: found, sort), lambda x, found: found, x, found)
