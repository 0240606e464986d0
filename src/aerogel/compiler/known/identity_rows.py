"""Rows of an identity matrix that indices pick, `jnp.eye(n)[t]`: one-hot rows, compared and not looked up.

Neither form rounds. What reads them then knows them as one-hot, and the n x n matrix need not exist.
"""

from typing import Any

import numpy as np
from jax import lax

from ..level import Edit, Level
from ..program import Builder
from .records import Facts, Identity, the

# An index out of bounds is taken for the nearest row.
_CLAMPED = (lax.GatherScatterMode.PROMISE_IN_BOUNDS, lax.GatherScatterMode.CLIP)


def identity_rows(level: Level, facts: Facts) -> list[Edit]:
    """An edit for each gather of whole rows, or columns, of an identity matrix."""
    return [
        edit
        for place, eqn in enumerate(level.eqns)
        if eqn.primitive.name == "gather" and the(Identity, facts.of(eqn.invars[0])) is not None
        for edit in _compared(level, place)
    ]


def _compared(level: Level, place: int) -> list[Edit]:
    eqn = level.eqns[place]
    (matrix, index), out, p = eqn.invars, eqn.outvars[0].aval, eqn.params["dimension_numbers"]
    picks = len(p.start_index_map) == 1 and tuple(p.collapsed_slice_dims) == tuple(p.start_index_map)
    if not picks or len(matrix.aval.shape) != 2 or len(p.offset_dims) != 1 or p.operand_batching_dims:
        return []
    n, (along,) = matrix.aval.shape[0], p.offset_dims
    if out.shape[along] != n or eqn.params["mode"] not in _CLAMPED or np.dtype(index.aval.dtype).itemsize < 4:
        return []

    def one_hot(i: Any) -> Any:
        rows = lax.reshape(i, tuple(1 if d == along else size for d, size in enumerate(out.shape)))
        rows = lax.clamp(np.asarray(0, i.dtype), rows, np.asarray(n - 1, i.dtype))
        places = lax.broadcasted_iota(i.dtype, out.shape, along)
        rows = lax.broadcast_in_dim(rows, out.shape, tuple(range(len(out.shape))))
        return lax.convert_element_type(lax.eq(rows, places), out.dtype)

    builder = Builder(eqn)
    (result,) = builder.call(one_hot, index)
    return [Edit(place, frozenset({place}), builder.eqns, {eqn.outvars[0]: result}, frozenset({place}))]
