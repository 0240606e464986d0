"""The place of the largest or smallest element, by looking for the block that it is in."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..cost.vector_code import FEWEST_SEARCHED, SHORTEST_SEARCH
from .anywhere import anywhere
from .on import on
from .places import spread, taken
from .site import Site

_REASON = "XLA looks for value and place one element after the other; extrema of blocks come from vector instructions"


def arg_extremum(x: jax.Array, axis: int, index_dtype: Any, largest: bool) -> jax.Array:
    """`lax.argmax(x, axis, index_dtype)`, or `lax.argmin`, bit for bit.

    XLA on CPU looks for value and place at once, one element after the other. Reductions to the extremum of each block
    of about sqrt(n) elements use vector instructions; only the extrema of the blocks, and then the elements of one
    block, are looked at one by one. XLA's `reduce_max` drops nan, and argmax gives the place of the first nan: where a
    sum says that there may be one, the search is done as it stands.

    Args:
        x: floats.
        axis: of at least 4 elements.
    """
    plain = lax.argmax if largest else lax.argmin
    blocks, rest = _blocked(x, axis)
    total = jnp.sum(blocks, axis + 1)
    return lax.cond(
        anywhere(jnp.any(total != total) | jnp.any(rest != rest)),  # there is a nan, or both infinities
        lambda x: plain(x, axis, index_dtype),
        lambda x: in_blocks(x, axis, index_dtype, largest),
        x,
    )


@on(
    lax.argmax_p,
    stage="final",
    platforms=("cpu",),
    exactness="bitwise",
    reason=_REASON,
    name="argmax-by-blocks",
)
def argmax_by_blocks(x: jax.Array, *, axes: tuple[int, ...], index_dtype: Any, site: Site) -> jax.Array | str:
    """The place of the first of the largest elements."""
    return cannot_block(x, axes[0], site) or arg_extremum(x, axes[0], index_dtype, largest=True)


@on(
    lax.argmin_p,
    stage="final",
    platforms=("cpu",),
    exactness="bitwise",
    reason=_REASON,
    name="argmin-by-blocks",
)
def argmin_by_blocks(x: jax.Array, *, axes: tuple[int, ...], index_dtype: Any, site: Site) -> jax.Array | str:
    """The place of the first of the smallest elements."""
    return cannot_block(x, axes[0], site) or arg_extremum(x, axes[0], index_dtype, largest=False)


def cannot_block(x: Any, axis: int, site: Site) -> str | None:
    """Why the search is done as it stands; None where blocks pay."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return "XLA looks for the extremum of integers with vector instructions"
    if x.shape[axis] < SHORTEST_SEARCH:
        return f"{x.shape[axis]} elements along the axis, fewer than {SHORTEST_SEARCH}"
    if math.prod(x.shape) < FEWEST_SEARCHED:
        return f"{math.prod(x.shape)} elements, fewer than {FEWEST_SEARCHED}"
    return spread(site)


def _blocked(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """`x` with the axis split into blocks, and what is left over."""
    n = x.shape[axis]
    width = block_width(n)
    count = n // width
    whole = lax.slice_in_dim(x, 0, count * width, axis=axis)
    rest = lax.slice_in_dim(x, count * width, n, axis=axis)
    return lax.reshape(whole, (*x.shape[:axis], count, width, *x.shape[axis + 1 :])), rest


def block_width(n: int) -> int:
    """Of a size around sqrt(n), so that both steps look at few elements: one that divides n, if there is one."""
    root = int(n**0.5)
    divisors = (w for k in range(root) for w in (root - k, root + k) if root // 4 <= w <= 4 * root and n % w == 0)
    return next(divisors, root)


def in_blocks(x: jax.Array, axis: int, index_dtype: Any, largest: bool) -> jax.Array:
    """The place of the first extremum of numbers without nan."""
    extremum: Callable[..., jax.Array] = jnp.max if largest else jnp.min
    plain = lax.argmax if largest else lax.argmin
    blocks, rest = _blocked(x, axis)
    width = blocks.shape[axis + 1]
    best = plain(extremum(blocks, axis + 1), axis, np.int32)
    block = lax.squeeze(taken(blocks, lax.expand_dims(best, (axis, axis + 1)), axis), (axis,))
    inside = plain(block, axis, np.int32)
    place = best * width + inside
    if rest.shape[axis]:
        after = plain(rest, axis, np.int32)
        old, new = (
            lax.squeeze(taken(of, lax.expand_dims(at, (axis,)), axis), (axis,))
            for of, at in ((block, inside), (rest, after))
        )
        better = lax.gt(new, old) if largest else lax.lt(new, old)
        place = lax.select(better, after + blocks.shape[axis] * width, place)
    return lax.convert_element_type(place, index_dtype)
