"""Looking numbers up in short tables."""

from typing import Any

import jax.numpy as jnp

from .operand import Operand
from .rule import rule

LONGEST = 32  # entries: docs/reference/catalogue-order.md


@rule(
    exactness="bitwise",
    reason="comparing with all of a short table fuses into one loop; a search by halves is a loop of gathers",
    stage="final",
    platforms=("cpu",),
)
def searched_short(table: Any, x: Any, *, right: bool = False) -> Any:
    """A search in a sorted table; in one that is not sorted, the two ways find different places."""
    return jnp.searchsorted(table, x, side="right" if right else "left")


@searched_short.to
def _(table: Any, x: Any, *, right: bool) -> Any:
    return jnp.searchsorted(table, x, side="right" if right else "left", method="compare_all")


@searched_short.when
def _(table: Operand, x: Operand, *, right: bool) -> bool | str:
    return table.size <= LONGEST or f"{table.size} entries, more than {LONGEST}"
