"""`gather` and the scatters: an axis passes where the operation does not choose among its entries.

Those are the window dimensions taken in full, the batching dimensions that operand and indices share, and the
positions of the index array (each of which is looked up alone). Scatters that add, multiply or compare reduce over
positions: which came first does not matter.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from ..._jax import JaxprEqn
from . import monoid
from .accumulate import accumulator_dtype
from .answer import Onto, Reduced
from .entry import Entry
from .labels import Axes, Dims, Labels, labelled
from .rebind import shape_of
from .rows import SCATTERS, with_rows

_POSITIONS = 1000  # labels of the index array's dimensions start here, those of the operand at 0


def _index_dims(rank: int, indices_batching: Sequence[int], operand_batching: Sequence[int]) -> Dims:
    """Labels of the index array; its last dimension holds the coordinates of one position."""
    shared = dict(zip(map(int, indices_batching), map(int, operand_batching), strict=True))
    return (*(shared.get(d, _POSITIONS + d) for d in range(rank - 1)), None)


def _gather(eqn: JaxprEqn) -> Labels:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand, indices = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    collapsed, batching = set(numbers.collapsed_slice_dims), set(numbers.operand_batching_dims)
    index = _index_dims(len(indices), numbers.start_indices_batching_dims, numbers.operand_batching_dims)
    # A full window can start only at 0, also where the mode looks at the index: the size in question is the same.
    window = [
        d if sizes[d] == operand[d] else None for d in range(len(operand)) if d not in collapsed and d not in batching
    ]
    kept = tuple(
        d if d in batching or (d not in collapsed and sizes[d] == operand[d]) else None for d in range(len(operand))
    )
    return Labels((kept, index), (_interleave(shape_of(eqn.outvars[0]), numbers.offset_dims, window, index[:-1]),))


def _interleave(shape: Sequence[int], window_dims: Sequence[int], window: Sequence[Any], others: Sequence[Any]) -> Dims:
    """Labels of a value whose dimensions `window_dims` are those of `window`, in order, and the rest `others`."""
    windows, rest = iter(window), iter(others)
    inside = set(map(int, window_dims))
    return tuple(next(windows) if d in inside else next(rest) for d in range(len(shape)))


def _gather_params(eqn: JaxprEqn, ins: Axes, outs: Axes, size: int) -> dict[str, Any]:
    operand = ins[0]
    if operand is None or operand.dim in eqn.params["dimension_numbers"].operand_batching_dims:
        return eqn.params
    return eqn.params | {"slice_sizes": operand.resize(eqn.params["slice_sizes"], size)}


def _scatter(eqn: JaxprEqn) -> Labels:
    numbers = eqn.params["dimension_numbers"]
    operand, indices, updates = (shape_of(v) for v in eqn.invars)
    inserted, batching = set(numbers.inserted_window_dims), set(numbers.operand_batching_dims)
    index = _index_dims(len(indices), numbers.scatter_indices_batching_dims, numbers.operand_batching_dims)
    windows = [d for d in range(len(operand)) if d not in inserted and d not in batching]
    sizes = {d: updates[int(u)] for d, u in zip(windows, sorted(numbers.update_window_dims), strict=True)}
    full = [d if sizes[d] == operand[d] else None for d in windows]
    kept = tuple(d if d in batching or sizes.get(d) == operand[d] else None for d in range(len(operand)))
    # Updates at different positions may meet in one entry: a position is no dimension of the result.
    return Labels((kept, index, _interleave(updates, numbers.update_window_dims, full, index[:-1])), (kept,))


def _over_positions(over: monoid.Monoid, scatter: Any) -> Entry:
    """The entry of a scatter that combines by `over` what meets in one entry; the first block starts at the operand."""

    def reduced(eqn: JaxprEqn, ins: Axes) -> Reduced:
        p, dtype = eqn.params, eqn.outvars[0].aval.dtype
        wide = accumulator_dtype(dtype)
        options = {name: p[name] for name in ("indices_are_sorted", "unique_indices", "mode")}

        def block(start: Any, size: int, operand: Any, indices: Any, updates: Any) -> list[Any]:
            operand, updates = (lax.convert_element_type(x, wide) for x in (operand, updates))
            (empty,) = over.identity([operand])
            base = lax.select(lax.eq(lax.convert_element_type(start, np.int32), np.int32(0)), operand, empty)
            return [scatter(base, indices, updates, p["dimension_numbers"], **options)]

        def put(whole: Any, operand: Any, indices: Any, updates: Any) -> Any:
            updates = lax.convert_element_type(updates, wide)
            return scatter(whole, indices, updates, p["dimension_numbers"], **options)

        def finish(total: Any) -> list[Any]:
            return [lax.convert_element_type(total, dtype)]

        return Reduced(ins, over, block, finish, uses_start=True, onto=Onto(0, wide, put))

    return with_rows(labelled(_scatter, reduced=reduced))


_COMBINING = {
    "scatter-add": _over_positions(monoid.ADD, lax.scatter_add),
    "scatter-mul": _over_positions(monoid.MUL, lax.scatter_mul),
    "scatter-min": _over_positions(monoid.MIN, lax.scatter_min),
    "scatter-max": _over_positions(monoid.MAX, lax.scatter_max),
}
ENTRIES: dict[str, Entry] = {
    "gather": labelled(_gather, _gather_params),
    **dict.fromkeys(SCATTERS, with_rows(labelled(_scatter))),
    **_COMBINING,
}
