"""Sums of the rows of each of several classes: `[sum(where((y == k)[:, None], x, 0), 0) for k in range(n)]`.

Each of them reads all rows, and XLA's CPU backend writes each masked array out. All together are rows that are added
where the classes say, which reads them once. Rows of no class are not read, so that a nan that a mask keeps out stays
out; where masks are multiplied with the rows, `x * (y == k)[:, None]`, it does only now.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..known.records import Constant, Facts, the
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record

FEWEST = 4096  # entries that all masks of a group let through or not
FEWEST_SUMS = 8  # numbers in the sums of a group: of fewer, masks are as cheap
SPARSEST = 8  # places for classes, for each class that is summed up
TYPES = frozenset("float32 float64 int32 int64".split())


@record
class _Sum:
    """The sum at a place: of the rows of `x` (of ones without) where `index` is `case`; the shape of all of them."""

    place: int
    index: Var
    case: int
    x: Var | None
    shape: tuple[int, ...]


def sums_of_classes(level: Level, facts: Facts, finite: bool) -> list[Edit]:
    """An edit for each group of such sums, of one array or of ones; `finite` if masks that are multiplied are masks."""
    groups: dict[tuple[Any, ...], dict[int, list[_Sum]]] = {}
    for place, eqn in enumerate(level.eqns):
        found = _found(level, facts, place, finite) if eqn.primitive.name == "reduce_sum" else None
        if found is not None:
            dtype = str(eqn.outvars[0].aval.dtype)
            key = found.index, found.x, found.shape, dtype
            groups.setdefault(key, {}).setdefault(found.case, []).append(found)
    return [_edit(level, group) for group in groups.values() if _pays(group)]


def _pays(group: dict[int, list[_Sum]]) -> bool:
    one = next(iter(group.values()))[0]
    entries, rows = math.prod(one.shape), math.prod(one.index.aval.shape)
    places = max(group) - min(group) + 1
    many = len(group) * entries >= FEWEST and len(group) * (entries // rows) >= FEWEST_SUMS
    return len(group) > 1 and many and places <= SPARSEST * len(group)


def _found(level: Level, facts: Facts, place: int, finite: bool) -> _Sum | None:
    eqn = level.eqns[place]
    (x,), out, axes = eqn.invars, eqn.outvars[0].aval, tuple(int(d) for d in eqn.params["axes"])
    shape = x.aval.shape
    plain = is_var(x) and not out.weak_type and str(out.dtype) in TYPES and eqn.params.get("out_sharding") is None
    if not plain or axes != tuple(range(len(axes))) or 0 in shape or len(axes) in (0, len(shape)):
        return None
    maker = level.maker(x)
    rows, which = None, x
    if maker is not None and maker.primitive.name == "select_n" and len(maker.invars) == 3:
        which, otherwise, rows = maker.invars
        zero = the(Constant, facts.of(otherwise))
        if zero is None or zero.value != 0:
            return None
    elif maker is not None and maker.primitive.name == "mul" and finite:
        masks = [k for k, one in enumerate(maker.invars) if _mask(level, one, shape, len(axes)) is not None]
        if len(masks) == 1:
            which, rows = maker.invars[masks[0]], maker.invars[1 - masks[0]]
    mask = _mask(level, which, shape, len(axes))
    if mask is None or math.prod(mask[0].aval.shape) != math.prod(shape[: len(axes)]):
        return None
    if rows is None:
        return _Sum(place, *mask, None, shape)
    there = is_var(rows) and rows.aval.shape == shape and rows.aval.dtype == out.dtype
    return _Sum(place, *mask, rows, shape) if there and is_var(rows) else None


def _mask(level: Level, which: Atom, shape: Sequence[int], axes: int) -> tuple[Var, int] | None:
    """An index along the first `axes` dimensions of a shape, and the number that it is where `which` is true or 1."""
    # For each dimension the one of the shape that it is, if it is not repeated along that.
    at = [d if n == shape[d] else None for d, n in enumerate(which.aval.shape)]
    while is_var(which) and (eqn := level.maker(which)) is not None:
        if eqn.primitive.name == "eq":
            return _compared(eqn) if [d for d in at if d is not None] == list(range(axes)) else None
        if eqn.primitive.name == "broadcast_in_dim":
            own, whole, dims = eqn.invars[0].aval.shape, which.aval.shape, eqn.params["broadcast_dimensions"]
            at = [at[d] if n == whole[d] else None for n, d in zip(own, dims, strict=True)]
        elif eqn.primitive.name != "convert_element_type":
            return None
        which = eqn.invars[0]
    return None


def _compared(eqn: JaxprEqn) -> tuple[Var, int] | None:
    for x, y in (eqn.invars, eqn.invars[::-1]):
        if (
            is_var(x)
            and isinstance(y, Literal)
            and _jax.is_number(x.aval.dtype)
            and np.dtype(x.aval.dtype).kind in "iu"
        ):
            wide = np.dtype(x.aval.dtype).itemsize >= 4 and not _jax.explicit_mesh(x.aval)
            return (x, int(y.val)) if wide and np.ndim(y.val) == 0 else None
    return None


def _edit(level: Level, group: dict[int, list[_Sum]]) -> Edit:
    """The rows added up by case, and each of the sums."""
    every = [one for several in group.values() for one in several]
    first, low, many = min(every, key=lambda one: one.place), min(group), max(group) - min(group) + 1
    eqn = level.eqns[first.place]
    out, rows = eqn.outvars[0].aval, math.prod(first.index.aval.shape)

    def call(index: Any, *x: Any) -> list[Any]:
        index = lax.reshape(index, (rows, 1))
        index = lax.sub(index, lax.full_like(index, low)) if low else index
        row = out.shape if x else ()
        updates = lax.reshape(x[0], (rows, *row)) if x else lax.full((rows,), 1, np.int32)
        numbers = lax.ScatterDimensionNumbers(tuple(range(1, 1 + len(row))), (0,), (0,))
        zeros = lax.full((many, *row), 0, updates.dtype)
        sums = lax.scatter_add(zeros, index, updates, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)
        each = (lax.index_in_dim(sums, case - low, 0, keepdims=False) for case in group)
        return [one if x else lax.broadcast(lax.convert_element_type(one, out.dtype), out.shape) for one in each]

    builder = Builder(eqn)
    results = builder.call(call, first.index, *(() if first.x is None else (first.x,)))
    made = {
        level.eqns[one.place].outvars[0]: result
        for several, result in zip(group.values(), results, strict=True)
        for one in several
    }
    places = frozenset(one.place for one in every)
    return Edit(first.place, places, builder.eqns, made, places)
