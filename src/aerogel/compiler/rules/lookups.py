"""Looking numbers up in sorted tables: other ways than a search by halves, which is a loop of gathers.

Measured in docs/reference/catalogue-order.md.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._jax import JaxprEqn
from .operand import Operand
from .places import spread
from .rule import rule
from .site import Site

SHORT = 128  # entries that are compared with everything: of 256 nothing is gained
FEWEST = 4096  # numbers that are looked up, for up to `SHORTER` entries: below, starting a branch takes what is gained
SHORTER = 32
FEWEST_OF_MORE = 16_384  # numbers, for up to `SHORT` entries
LONGEST = 1024  # entries of a table in which the halves of the search are written out: of 10,000 nothing is gained
MANY = 100_000  # numbers, for that
FEWEST_EVENLY = 8192  # numbers, for a table whose places are computed
FOR_EACH_ENTRY = 4  # of them, for each entry of that table, which is looked at first


def _side(right: bool) -> str:
    return "right" if right else "left"


@rule(
    exactness="bitwise",
    reason="comparisons with each entry of a short table are one loop of vector code; a search is a loop of gathers",
    stage="final",
    platforms=("cpu",),
)
def searched_short(table: Any, x: Any, *, right: bool = False) -> Any:
    """A search in a short table. In one that is not in order, only the search itself finds the places that it finds."""
    return jnp.searchsorted(table, x, side=_side(right))


@searched_short.to
def _(table: Any, x: Any, *, right: bool) -> Any:
    def search(table: Any, x: Any) -> Any:
        return jnp.searchsorted(table, x, side=_side(right))

    def count(table: Any, x: Any) -> Any:
        return _in_pairs(lambda x: _before(table, x, right), x)

    return lax.cond(_in_order(table), count, search, table, x)


@searched_short.when
def _(table: Operand, x: Operand, *, right: bool, site: Site) -> bool | str:
    if table.size > SHORT:
        return f"{table.size} entries, more than {SHORT}"
    if table.examples > 1:
        return "a table for each example: the branch would be taken both ways"
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return "complex numbers"
    fewest = FEWEST if table.size <= SHORTER else FEWEST_OF_MORE
    if x.size * x.examples < fewest:
        return f"{x.size * x.examples} numbers are fewer than {fewest}"
    if _is_odd(x) and table.size > SHORTER:
        return "an odd number of examples, which XLA compares one by one"
    return spread(site) or True


@rule(
    exactness="bitwise",
    reason="of a table with even steps arithmetic says where a number stands, but for one place more or less",
    stage="final",
    platforms=("cpu",),
)
def searched_evenly(table: Any, x: Any, *, right: bool = False) -> Any:
    """A search in a table like `linspace`; whether it is one is seen when the program runs."""
    return jnp.searchsorted(table, x, side=_side(right))


@searched_evenly.to
def _(table: Any, x: Any, *, right: bool) -> Any:
    def search(table: Any, x: Any) -> Any:
        unrolled = 1 < table.size <= LONGEST and x.size >= MANY
        method = "scan_unrolled" if unrolled else "scan"
        return _in_pairs(lambda x: jnp.searchsorted(table, x, side=_side(right), method=method), x)

    def count(table: Any, x: Any) -> Any:
        return _in_pairs(lambda x: _before_evenly(table, x, right), x)

    return lax.cond(_is_even(table), count, search, table, x)


@searched_evenly.when
def _(table: Operand, x: Operand, *, right: bool, site: Site) -> bool | str:
    if table.size <= SHORT:
        return f"{table.size} entries, which are compared at once"
    if table.examples > 1:
        return "a table for each example: the branch would be taken both ways"
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return f"numbers of {x.dtype}"
    numbers, fewest = x.size * x.examples, max(FEWEST_EVENLY, FOR_EACH_ENTRY * table.size)
    if numbers < fewest:
        return f"{numbers} numbers are fewer than {fewest}"
    return spread(site) or True


@rule(
    exactness="bitwise",
    reason="the halves of a search that are written out fuse into one loop",
    stage="final",
    platforms=("cpu",),
)
def searched_at_once(table: Any, x: Any, *, right: bool = False) -> Any:
    """A search of many numbers."""
    return jnp.searchsorted(table, x, side=_side(right))


@searched_at_once.to
def _(table: Any, x: Any, *, right: bool) -> Any:
    return _in_pairs(lambda x: jnp.searchsorted(table, x, side=_side(right), method="scan_unrolled"), x)


@searched_at_once.when
def _(table: Operand, x: Operand, *, right: bool) -> bool | str:
    if not 1 < table.size <= LONGEST:
        return f"{table.size} entries, not 2 to {LONGEST}"
    numbers = x.size * x.examples
    if _is_odd(x):
        return "an odd number of examples, which XLA looks up one by one"
    return numbers >= MANY or f"{numbers} numbers are fewer than {MANY}"


def _differentiated(table: Any, x: Any, *, right: bool) -> Any:
    """A search for numbers by which a gradient is taken: JAX does a part of each step once, in front of the loop."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.searchsorted(table, x, side=_side(right))
    return jax.linearize(lambda x: jnp.searchsorted(table, x, side=_side(right)), x)[0]


def _may_search(eqn: JaxprEqn) -> bool:
    """Whether a loop takes what that of a search does: the table, the numbers, and between what each is still to be.

    In a gradient the half is one too, and what stands for zero and nan. Between what each is still to be comes last.
    """
    unsigned = [getattr(x.aval.dtype, "kind", "") == "u" for x in eqn.invars]
    return 4 <= len(unsigned) <= 7 and all(unsigned[-2:])


for _one in (searched_short, searched_evenly, searched_at_once):
    _one.also(_differentiated)
searched_short.begins = searched_evenly.begins = searched_at_once.begins = {"scan": _may_search}


def _before(table: Any, x: Any, right: bool) -> Any:
    """How many entries stand before each number, in a table that is in order: every nan is last, equal to all others.

    Added up entry by entry: XLA writes comparisons out that it is told to reduce.
    """
    before = lax.le if right else lax.lt
    count = jnp.zeros(x.shape, np.int32)
    for k in range(table.shape[0]):
        entry = lax.broadcast(table[k], x.shape)
        count += lax.convert_element_type(before(entry, x), np.int32)
    if not jnp.issubdtype(table.dtype, jnp.inexact):
        return count
    before_nan = table.shape[0] if right else jnp.sum(table == table, dtype=np.int32)
    return jnp.where(x == x, count, before_nan)


def _evenly(table: Any, x: Any) -> Any:
    """Where numbers stand if the table has even steps, up to rounding: of a larger number no place in front of it."""
    first, last = table[0], table[-1]
    wide = np.promote_types(table.dtype, np.float32)
    steps = (table.shape[0] - 1) / (last.astype(wide) - first.astype(wide))
    return jnp.clip((x.astype(wide) - first.astype(wide)) * steps, 0, table.shape[0] - 1)


def _is_even(table: Any) -> Any:
    """Whether each entry of a table in order is where arithmetic puts it, or one place behind that.

    A number between entries j and j + 1 is then put at j - 1, j or j + 1, as the arithmetic keeps the order.
    """
    found, places = jnp.floor(_evenly(table, table)), lax.iota(np.int32, table.shape[0])
    behind = places - found.astype(np.int32)
    return jnp.all((found == found) & (behind >= 0) & (behind <= 1)) & jnp.all(table[:-1] <= table[1:])


def _before_evenly(table: Any, x: Any, right: bool) -> Any:
    """How many entries stand before each number: two of them are looked at."""
    n = table.shape[0]
    before = lax.le if right else lax.lt
    place = jnp.where(x == x, _evenly(table, x), 0).astype(np.int32)
    entry, after = (table.at[at].get(mode="promise_in_bounds") for at in (place, jnp.minimum(place + 1, n - 1)))
    further = before(after, x) & (place < n - 1)
    return jnp.where(x == x, place + before(entry, x).astype(np.int32) + further.astype(np.int32), n)


def _is_odd(x: Operand) -> bool:
    """Whether there is an odd number of numbers, of which none is looked up apart."""
    return x.size * x.examples % 2 == 1 and x.size < FEWEST


def _in_pairs(search: Callable[[Any], Any], x: Any) -> Any:
    """A search whose numbers are even in number, and one of the last: XLA does an odd number one by one."""
    if x.size % 2 == 0 or x.size < FEWEST:
        return search(x)
    flat = lax.reshape(x, (x.size,))
    found = [search(lax.slice(flat, (start,), (end,))) for start, end in ((0, x.size - 1), (x.size - 1, x.size))]
    return lax.reshape(lax.concatenate(found, 0), x.shape)


def _in_order(table: Any) -> Any:
    """Whether both ways find the same: `sort` puts nan last, and -0 where 0 is."""
    before, after = table[:-1], table[1:]
    if not jnp.issubdtype(table.dtype, jnp.inexact):
        return jnp.all(before <= after)
    return jnp.all((before <= after) | jnp.isnan(after))
