"""Rows written along the axis itself: `ys.at[0].set(0)`, `ys.at[:5].add(u)`, `dynamic_update_slice`.

Each index of the axis is told by its number whether it is one of those rows: then it takes its row of the update.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import lax

from ..._jax import JaxprEqn
from ..applied import applies_function
from ..record import record
from .answer import Axis, Mapped, No
from .entry import Entry
from .rebind import shape_of

Combine = Callable[[Any, Any], Any]
SCATTERS: dict[str, Combine] = {
    "scatter": lambda old, new: new,
    "scatter-add": lax.add,
    "scatter-sub": lax.sub,
    "scatter-mul": lax.mul,
    "scatter-min": lax.min,
    "scatter-max": lax.max,
}


@record
class _Rows:
    """`count` rows of dimension `dim` of the first input are written, from the one that input `first` names."""

    dim: int
    count: int
    update: int
    first: int
    combine: Combine
    drops: bool  # whether rows that do not all fit are not written at all, rather than moved until they do


def with_rows(entry: Entry) -> Entry:
    """An entry that knows, besides what it knew, the axis along which whole rows are written."""

    def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int) -> Any:
        found = _rows(eqn, ins[0].dim) if list(ins) == [0] and ins[0].is_plain else None
        return entry.along(eqn, ins, length) if found is None else _mapped(eqn, found, length)

    def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
        found = _rows(eqn, outs[0].dim) if outs[0].is_plain else None
        return entry.along_output(eqn, outs, length) if found is None else _mapped(eqn, found, length)

    return Entry(along, along_output)


def _rows(eqn: JaxprEqn, dim: int) -> _Rows | None:
    """What an equation writes along `dim`; None unless that is whole rows at one place."""
    shape = shape_of(eqn.invars[0])
    if not isinstance(eqn.invars[0].aval.dtype, np.dtype) or applies_function(eqn):
        return None
    others = (*shape[:dim], *shape[dim + 1 :])
    if eqn.primitive.name == "dynamic_update_slice":
        update = shape_of(eqn.invars[1])
        whole = (*update[:dim], *update[dim + 1 :]) == others and update[dim] < shape[dim]
        return _Rows(dim, update[dim], 1, 2 + dim, SCATTERS["scatter"], False) if whole else None
    p, update = eqn.params["dimension_numbers"], shape_of(eqn.invars[2])
    if tuple(p.scatter_dims_to_operand_dims) != (dim,) or shape_of(eqn.invars[1]) != (1,) or p.operand_batching_dims:
        return None
    if tuple(p.update_window_dims) != tuple(range(len(update))):
        return None
    drops = eqn.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    combine = SCATTERS[eqn.primitive.name]
    if tuple(p.inserted_window_dims) == (dim,):
        return _Rows(dim, 1, 2, 1, combine, drops) if update == others else None
    whole = not p.inserted_window_dims and (*update[:dim], *update[dim + 1 :]) == others and update[dim] < shape[dim]
    return _Rows(dim, update[dim], 2, 1, combine, drops) if whole else None


def _mapped(eqn: JaxprEqn, rows: _Rows, length: int) -> Mapped:
    axis, dim = Axis(rows.dim), rows.dim

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        x, update = inputs[0], inputs[rows.update]
        if update.ndim < x.ndim:
            update = lax.expand_dims(update, [dim])
        first, last = lax.convert_element_type(lax.reshape(inputs[rows.first], ()), np.int32), length - rows.count
        fits = (first >= 0) & (first <= np.int32(last))
        if not rows.drops:
            first, fits = lax.clamp(np.int32(0), first, np.int32(last)), np.bool_(True)
        place = lax.iota(np.int32, size) + lax.convert_element_type(start, np.int32) - first
        hit = (place >= 0) & (place < rows.count) & fits
        if rows.count > 1:
            # one row of the update for each of the block
            at = lax.clamp(np.int32(0), place, np.int32(rows.count - 1))
            taken = [lax.dynamic_index_in_dim(update, at[k], dim) for k in range(size)]
            update = taken[0] if size == 1 else lax.concatenate(taken, dim)
        elif size != 1:
            update = lax.broadcast_in_dim(update, x.shape, range(x.ndim))
        return [lax.select(lax.broadcast_in_dim(hit, x.shape, [dim]), rows.combine(x, update), x)]

    ins = (axis, *(None for _ in eqn.invars[1:]))
    return Mapped(ins, (axis,), block, uses_start=True)
