"""Filled diagonals are chosen by places: blocks of all pairs need not exist to have some of their entries written.

`jnp.fill_diagonal(q, 0)` and `q.at[jnp.diag_indices(n)].set(0)`, as embeddings and contrastive losses have them, write
into an array that is in memory. A choice by places works entry by entry, and gives the same bits.
"""

from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn

from ..cost import nbytes
from ..known.picks import columns_of, counts_along
from ..level import Edit, Level, apply_edits
from ..program import Builder


def with_filled_diagonals(jaxpr: Jaxpr, least_bytes: int) -> Jaxpr:
    """A level in which no whole diagonal of a matrix of at least so many bytes is written, or added to, by indices.

    The same object if none is. An argument, or what a loop carries, stays: its entries are written where they are.
    """
    if not any(_is_large_scatter(eqn, least_bytes) for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(jaxpr)
    places = [k for k, eqn in enumerate(jaxpr.eqns) if _is_large_scatter(eqn, least_bytes) and _fills(level, eqn)]
    edits = [_chosen(place, jaxpr.eqns[place]) for place in places]
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _is_large_scatter(eqn: JaxprEqn, least_bytes: int) -> bool:
    return eqn.primitive.name in ("scatter", "scatter-add") and nbytes(eqn.outvars[0].aval) >= least_bytes


def _fills(level: Level, eqn: JaxprEqn) -> bool:
    """Whether a scatter writes the diagonal of a matrix that the level makes."""
    matrix, indices, d = eqn.invars
    shape, numbers = matrix.aval.shape, eqn.params["dimension_numbers"]
    if len(shape) != 2 or tuple(d.aval.shape) != (min(shape),) or level.maker(matrix) is None or eqn.effects:
        return False
    name, dtype = eqn.primitive.name, matrix.aval.dtype
    if dtype == np.bool_ if name == "scatter-add" else eqn.params["update_jaxpr"] is not None:
        return False
    in_order = tuple(numbers.scatter_dims_to_operand_dims) == tuple(numbers.inserted_window_dims) == (0, 1)
    columns = columns_of(level, indices, 2)
    return in_order and columns is not None and all(counts_along(level, x) == 0 for x in columns)


def _chosen(place: int, eqn: JaxprEqn) -> Edit:
    matrix, _, d = eqn.invars
    shape, added = matrix.aval.shape, eqn.primitive.name == "scatter-add"

    def chosen(matrix: Any, d: Any) -> Any:
        rows, columns = (lax.broadcasted_iota(np.dtype(np.int32), shape, k) for k in range(2))
        behind = shape[0] - d.shape[0]
        d = lax.pad(d, np.zeros((), d.dtype), [(0, behind, 0)]) if behind else d
        d = lax.broadcast_in_dim(d, shape, (0,))
        return lax.select(lax.eq(rows, columns), lax.add(matrix, d) if added else d, matrix)

    builder, here = Builder(eqn), frozenset({place})
    (result,) = builder.call(chosen, matrix, d)
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: builder.as_weak_as(eqn.outvars[0], result)}, here)
