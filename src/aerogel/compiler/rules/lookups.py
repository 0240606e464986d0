"""Looking numbers up in sorted tables: other ways than a search by halves, which is a loop of gathers.

Measured in docs/reference/catalogue-order.md.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from .operand import Operand
from .places import spread
from .rule import rule
from .site import Site

SHORT = 32  # entries that are compared with everything: of 64 that takes 3 times as long as the search
# Numbers that are looked up: below, starting a branch takes what is gained. Of an odd number it takes longer than the
# search: 10,001 in a table of 17 took 3 times as long, 14,000 a third (jaxlib 0.10.2).
FEWEST = 4096
LONGEST = 1024  # entries of a table in which the halves of the search are written out: of 10,000 nothing is gained
MANY = 100_000  # numbers, for that


def _side(right: bool) -> str:
    return "right" if right else "left"


@rule(
    exactness="bitwise",
    reason="comparing with all of a short table fuses into one loop; a search by halves is a loop of gathers",
    stage="final",
    platforms=("cpu",),
)
def searched_short(table: Any, x: Any, *, right: bool = False) -> Any:
    """A search in a short table. In one that is not in order, only the search itself finds the places that it finds."""
    return jnp.searchsorted(table, x, side=_side(right))


@searched_short.to
def _(table: Any, x: Any, *, right: bool) -> Any:
    ways = [
        lambda t, x, way=way: jnp.searchsorted(t, x, side=_side(right), method=way) for way in ("scan", "compare_all")
    ]
    return lax.cond(_in_order(table), ways[1], ways[0], table, x)


@searched_short.when
def _(table: Operand, x: Operand, *, right: bool, site: Site) -> bool | str:
    if table.size > SHORT:
        return f"{table.size} entries, more than {SHORT}"
    if table.examples > 1:
        return "a table for each example: the branch would be taken both ways"
    if x.size * x.examples < FEWEST:
        return f"{x.size * x.examples} numbers are fewer than {FEWEST}"
    if x.size * x.examples % 2:
        return "an odd number of numbers, which XLA compares one by one"
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
    return jnp.searchsorted(table, x, side=_side(right), method="scan_unrolled")


@searched_at_once.when
def _(table: Operand, x: Operand, *, right: bool) -> bool | str:
    if not 1 < table.size <= LONGEST:
        return f"{table.size} entries, not 2 to {LONGEST}"
    numbers = x.size * x.examples
    return numbers >= MANY or f"{numbers} numbers are fewer than {MANY}"


def _in_order(table: Any) -> Any:
    """Whether both ways find the same: `sort` puts nan last, and -0 where 0 is."""
    before, after = table[:-1], table[1:]
    if not jnp.issubdtype(table.dtype, jnp.inexact):
        return jnp.all(before <= after)
    return jnp.all((before <= after) | jnp.isnan(after))
