"""Windows that are read, or added up, row by row: an index for each window, and not for each number in it.

XLA's CPU backend looks at each index of a gather or scatter, and copies what lies behind one in a loop without looking:
0.35 of the time for frames of 400 numbers, 0.13 of it where they are added up.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.rebind import shape_of
from ..known.even_indices import Even, EvenIndices
from ..level import Edit, Level
from ..program import Builder
from .windows import Windows, windows_of

FEWEST = 1024  # numbers in all windows
# Numbers behind an index that are copied without a look anyway: reads of 8 to 128 took 0.7 to 1.3 of the time in rows,
# of 1 to 4 0.26 to 0.67; adding up takes 0.16 to 0.5 with any number (2 cores of an AMD EPYC, jaxlib 0.10.2).
MANY_BEHIND = 8
IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def window_rows(level: Level, arrays: Mapping[Var, Even]) -> Iterator[Edit]:
    """An edit for each gather, or additive scatter, of windows that lie along one dimension of an array."""
    indices = EvenIndices(level, arrays)
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name in ("gather", "scatter-add"):
            windows = windows_of(eqn, indices)
            axis = None if windows is None or not windows.overlap else _axis(eqn, windows)
            if windows is not None and axis is not None:
                yield _by_rows(eqn, place, windows, axis)


def _numbers(eqn: JaxprEqn) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Which dimensions of the value are those of a window, and which of the array have none, or are batched."""
    p = eqn.params["dimension_numbers"]
    if eqn.primitive.name == "gather":
        return p.offset_dims, p.collapsed_slice_dims, p.operand_batching_dims
    return p.update_window_dims, p.inserted_window_dims, p.operand_batching_dims


def _axis(eqn: JaxprEqn, windows: Windows) -> int | None:
    """The dimension of the value that is copied along: neighbours that are looked up one by one; None if none is."""
    offset, alone, batched = _numbers(eqn)
    behind = math.prod(windows.shape[d] for d in offset)
    if batched or math.prod(windows.shape) < FEWEST or (eqn.primitive.name == "gather" and behind >= MANY_BEHIND):
        return None
    last = len(windows.shape) - 1
    fits: list[int] = []
    for d, n in enumerate(windows.shape):
        moved = [a for a, steps in enumerate(windows.steps) if steps[d]]
        if d in offset or n < 2 or len(moved) != 1 or moved[0] not in alone or windows.steps[moved[0]][d] != 1:
            continue
        before = [a for a in range(moved[0]) if a not in alone]
        if len(before) == sum(o < d for o in offset):  # a window's dimensions stand in the order of the array's
            fits.append(d)
    return max(fits, key=lambda d: (d == last, windows.shape[d]), default=None)


def _by_rows(eqn: JaxprEqn, place: int, windows: Windows, axis: int) -> Edit:
    offset, alone, _ = _numbers(eqn)
    (dim,) = (a for a, steps in enumerate(windows.steps) if steps[axis])
    offset, alone = tuple(sorted((*offset, axis))), tuple(a for a in alone if a != dim)
    looked = [d for d in range(len(windows.shape)) if d not in offset]
    starts = tuple(a for a, steps in enumerate(windows.steps) if windows.start[a] or any(steps[d] for d in looked))
    shape = tuple(windows.shape[d] for d in looked)

    def index() -> Any:
        columns: list[Any] = []
        for a in starts:
            column = lax.full(shape, windows.start[a], np.int32)
            for k, d in enumerate(looked):
                if windows.steps[a][d]:
                    step = np.int32(windows.steps[a][d])
                    column = lax.add(column, lax.mul(lax.broadcasted_iota(np.int32, shape, k), step))
            columns.append(lax.expand_dims(column, [len(shape)]))
        return lax.concatenate(columns, len(shape)) if columns else lax.full((*shape, 0), 0, np.int32)

    builder = Builder(eqn)
    if eqn.primitive.name == "gather":
        sizes = [1 if a in alone else n for a, n in enumerate(eqn.params["slice_sizes"])]
        sizes[dim] = windows.shape[axis]
        numbers = lax.GatherDimensionNumbers(offset, alone, starts)
        (out,) = builder.call(lambda x: lax.gather(x, index(), numbers, sizes, mode=IN_BOUNDS), eqn.invars[0])
    else:
        scattered = lax.ScatterDimensionNumbers(offset, alone, starts)
        reads: list[Atom] = [eqn.invars[0], eqn.invars[2]]
        (out,) = builder.call(lambda x, u: lax.scatter_add(x, index(), u, scattered, mode=IN_BOUNDS), *reads)
    here = frozenset((place,))
    assert shape_of(out) == shape_of(eqn.outvars[0]), "windows keep their shape"
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: builder.as_weak_as(eqn.outvars[0], out)}, here)
