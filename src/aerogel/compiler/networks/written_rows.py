"""One entry of each row, written into zeros: `jnp.zeros((n, m)).at[jnp.arange(n), i].set(v)` by a comparison of places.

It rounds nothing; what reads the result then knows it as one-hot rows, of which a product is a lookup.
"""

from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..known.records import Constant, Counted, Facts, the
from ..level import Edit, Level
from ..program import Builder, is_var

WRITTEN = "an entry of each row is compared, not written"


def written_row(level: Level, facts: Facts, place: int) -> Edit | None:
    """The edit that does it, if a scatter is of this kind."""
    eqn = level.eqns[place]
    found = _columns(level, facts, eqn)
    if found is None:
        return None
    along, columns = found
    zeros, _, values = eqn.invars
    n, dtype = zeros.aval.shape, zeros.aval.dtype

    def rows(columns: Any, values: Any) -> Any:
        columns = lax.broadcast_in_dim(lax.reshape(columns, columns.shape[:1]), n, (along,))
        places = lax.broadcasted_iota(columns.dtype, n, 1 - along)
        return lax.select(lax.eq(columns, places), lax.broadcast_in_dim(values, n, (along,)), lax.full(n, 0, dtype))

    builder = Builder(eqn)
    (result,) = builder.call(rows, columns, values)
    if result.aval != eqn.outvars[0].aval:
        return None
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: result}, here)


def _columns(level: Level, facts: Facts, eqn: JaxprEqn) -> tuple[int, Atom] | None:
    """The dimension whose places are counted, and where in the other one is written."""
    if eqn.effects or not _writes(eqn):
        return None
    (zeros, indices, values), p = eqn.invars, eqn.params["dimension_numbers"]
    zero, shape = the(Constant, facts.of(zeros)), zeros.aval.shape
    if zero is None or zero.value != 0 or len(shape) != 2 or p.update_window_dims or len(values.aval.shape) != 1:
        return None
    if (p.operand_batching_dims, p.scatter_indices_batching_dims) == ((0,), (0,)):  # `vmap` of one row
        return (0, indices) if indices.aval.shape == (shape[0], 1) and _reaches(indices, shape[1]) else None
    joined = level.maker(indices)
    if p.operand_batching_dims or len(indices.aval.shape) != 2 or joined is None:
        return None
    if joined.primitive.name != "concatenate" or [x.aval.shape[1:] for x in joined.invars] != [(1,), (1,)]:
        return None
    for dim, counted, columns in zip(p.scatter_dims_to_operand_dims, joined.invars, joined.invars[::-1], strict=True):
        is_each = the(Counted, facts.of(counted)) == Counted(0, 1, 0) and counted.aval.shape[0] == shape[dim]
        is_any = is_var(columns) and the(Counted, facts.of(columns)) is None  # else it is a diagonal
        if is_each and is_any and _reaches(columns, shape[1 - dim]):
            return dim, columns
    return None


def _reaches(columns: Atom, count: int) -> bool:
    """Whether the integers can count so many places."""
    return np.iinfo(columns.aval.dtype).max >= count


def _writes(eqn: JaxprEqn) -> bool:
    """Whether a scatter writes what it is given, and nothing where an index is outside."""
    is_plain = eqn.primitive.name == "scatter-add" or eqn.params["update_jaxpr"] is None
    return is_plain and eqn.params["mode"] in (
        lax.GatherScatterMode.FILL_OR_DROP,
        lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
