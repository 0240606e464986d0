"""Diagonals that are written into zeros, or read, by counted indices: the same by a comparison of places.

`jnp.diagflat(d)` writes into a vector, of which it makes a matrix. JAX's derivative of `x.at[i].set(v)` looks up, entry
by entry, which of equal indices won, in an array as large as `x`: of counted indices no two are equal. Neither rewrite
rounds; what reads their results then knows them as diagonals, or as `v`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..known.records import Constant, Counted, Facts, the
from ..level import Edit, Level
from ..program import Builder, is_var
from .written_rows import WRITTEN as ONE_IN_EACH
from .written_rows import written_row

READS = ("gather", "slice")  # a gather at evenly spaced places of a vector is a slice in normal form
WRITTEN, READ = "entries on a diagonal are compared, not written one by one", "a diagonal is read as one"
DISTINCT = "of counted indices, no two are equal"


def written_diagonals(level: Level, facts: Facts) -> Iterator[tuple[str, Edit]]:
    """What is done, and the edit that does it, for each of them."""
    for place, eqn in enumerate(level.eqns):
        name = eqn.primitive.name
        if name == "reshape":
            found = WRITTEN, _written(level, facts, place)
        elif name in READS:
            found = READ, _read(level, facts, place)
        elif name == "select_n":
            found = DISTINCT, _last_written(level, facts, place)
        elif name in ("scatter", "scatter-add"):
            found = ONE_IN_EACH, written_row(level, facts, place)
        else:
            continue
        if found[1] is not None:
            yield found[0], found[1]


def _made(level: Level, x: Atom, *names: str) -> JaxprEqn | None:
    place = level.made_by.get(x, -1) if is_var(x) else -1
    return level.eqns[place] if place >= 0 and level.eqns[place].primitive.name in names else None


def _edit(place: int, builder: Builder, eqn: JaxprEqn, result: Atom) -> Edit | None:
    (out,) = eqn.outvars
    if result.aval != out.aval:
        return None
    return Edit(place, frozenset({place}), builder.eqns, {out: result}, frozenset({place}))


def _square(shape: tuple[int, ...]) -> int | None:
    """The size of a square matrix of two rows and more."""
    return shape[0] if len(shape) == 2 and shape[0] == shape[1] > 1 else None


def _is_on_diagonal(facts: Facts, indices: Atom, n: int) -> bool:
    """Whether indices are those of the diagonal of an n x n matrix, in its entries one after the other."""
    counted = the(Counted, facts.of(indices))
    return tuple(indices.aval.shape) == (n, 1) and counted == Counted(0, n + 1, 0)


def _written(level: Level, facts: Facts, place: int) -> Edit | None:
    """A matrix made of a vector of zeros into which its diagonal was written."""
    eqn = level.eqns[place]
    n = _square(eqn.outvars[0].aval.shape)
    if n is None or eqn.params.get("dimensions") is not None:
        return None
    d = _entries(level, facts, _beside_zeros(level, facts, eqn.invars[0]), n)
    if d is None:
        return None

    def matrix(d: Any) -> Any:
        rows, columns = (lax.broadcasted_iota(np.dtype(np.int32), (n, n), k) for k in range(2))
        return lax.select(lax.eq(rows, columns), lax.broadcast_in_dim(d, (n, n), (0,)), lax.full((n, n), 0, d.dtype))

    builder = Builder(eqn)
    (result,) = builder.call(matrix, d)
    return _edit(place, builder, eqn, result)


def _beside_zeros(level: Level, facts: Facts, x: Atom) -> Atom:
    """What zeros are added to, if they are; else the value itself."""
    total = _made(level, x, "add", "add_any")
    for one, other in (total.invars, total.invars[::-1]) if total is not None else ():
        zero = the(Constant, facts.of(one))
        if zero is not None and zero.value == 0:
            return other
    return x


def _entries(level: Level, facts: Facts, x: Atom, n: int) -> Atom | None:
    """What stands on the diagonal, if a vector is that of an n x n matrix of zeros else, row after row."""
    padded = _made(level, x, "pad")  # the normal form of numbers that are added to zeros at evenly spaced places
    if padded is not None:
        d, zero = padded.invars[0], the(Constant, facts.of(padded.invars[1]))
        spaced = tuple(d.aval.shape) == (n,) and tuple(map(tuple, padded.params["padding_config"])) == ((0, 0, n),)
        return d if spaced and zero is not None and zero.value == 0 else None
    scatter = _made(level, x, "scatter", "scatter-add")
    if scatter is None or scatter.effects:
        return None
    (zeros, indices, d), p = scatter.invars, scatter.params["dimension_numbers"]
    zero = the(Constant, facts.of(zeros))
    plain = p.scatter_dims_to_operand_dims == p.inserted_window_dims == (0,) and not p.update_window_dims
    if zero is None or zero.value != 0 or not plain or not _writes(scatter):
        return None
    if tuple(zeros.aval.shape) != (n * n,) or not _is_on_diagonal(facts, indices, n):
        return None
    return d


def _writes(scatter: JaxprEqn) -> bool:
    """Whether a scatter writes into its operand, or adds to it: what it is given at distinct places of zeros."""
    return scatter.primitive.name == "scatter-add" or scatter.params["update_jaxpr"] is None


def _read(level: Level, facts: Facts, place: int) -> Edit | None:
    """The diagonal of a matrix, read from its entries one after the other."""
    eqn = level.eqns[place]
    flat = eqn.invars[0]
    made = _made(level, flat, "reshape")
    if made is None or made.params.get("dimensions") is not None or len(flat.aval.shape) != 1:
        return None
    matrix = made.invars[0]
    n = _square(matrix.aval.shape)
    if n is None or _places(facts, eqn) != (n + 1, 0) or tuple(eqn.outvars[0].aval.shape) != (n,):
        return None
    places = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))

    def diagonal(x: Any) -> Any:
        rows = lax.broadcasted_iota(np.dtype(np.int32), (n, 2), 0)
        return lax.gather(x, rows, places, (1, 1), mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)

    builder = Builder(eqn)
    (result,) = builder.call(diagonal, matrix)
    return _edit(place, builder, eqn, result)


def _places(facts: Facts, eqn: JaxprEqn) -> tuple[int, int] | None:
    """Scale and offset of the places of a vector that a gather or a slice reads one after the other."""
    if eqn.primitive.name == "slice":
        (start,), strides = eqn.params["start_indices"], eqn.params["strides"]
        return (1 if strides is None else strides[0]), start
    counted = the(Counted, facts.of(eqn.invars[1]))
    alone = not eqn.params["dimension_numbers"].offset_dims and eqn.invars[1].aval.shape[1:] == (1,)
    return (counted.scale, counted.offset) if counted is not None and counted.dim == 0 and alone else None


def _last_written(level: Level, facts: Facts, place: int) -> Edit | None:
    """`where(numbers == which of them was written last, x, y)`: x, if no two are written to one place."""
    eqn = level.eqns[place]
    equal = _made(level, eqn.invars[0], "eq")
    if equal is None or len(eqn.invars) != 3:
        return None
    for numbers, seen in (equal.invars, reversed(equal.invars)):
        gather = _made(level, seen, *READS)
        scatter = None if gather is None else _made(level, gather.invars[0], "scatter")
        if gather is None or scatter is None or not _writes(scatter):
            continue
        if scatter.invars[2] is numbers and _are_distinct(facts, scatter, gather):
            return Edit(place, frozenset({place}), [], {eqn.outvars[0]: eqn.invars[2]}, frozenset({place}))
    return None


def _are_distinct(facts: Facts, scatter: JaxprEqn, gather: JaxprEqn) -> bool:
    """Whether what a scatter writes at counted places, each inside and no two alike, is what a gather reads there."""
    (target, indices, updates), p = scatter.invars, scatter.params["dimension_numbers"]
    counted, picked = the(Counted, facts.of(indices)), tuple(p.scatter_dims_to_operand_dims)
    if counted is None or not counted.scale or updates.aval.shape != gather.outvars[0].aval.shape:
        return False
    if len(indices.aval.shape) != 2 or counted.dim != 0:
        return False
    ends = counted.offset, counted.offset + counted.scale * (indices.aval.shape[0] - 1)
    if not all(0 <= end < target.aval.shape[d] for end in ends for d in picked):
        return False
    if gather.primitive.name == "slice":
        return len(target.aval.shape) == 1 and _places(facts, gather) == (counted.scale, counted.offset)
    q = gather.params["dimension_numbers"]
    if gather.invars[1] is not indices:
        return False
    alike = (tuple(p.update_window_dims), tuple(p.inserted_window_dims)) == (q.offset_dims, q.collapsed_slice_dims)
    if picked != tuple(q.start_index_map) or sorted(picked) != sorted(p.inserted_window_dims) or not alike:
        return False
    if p.operand_batching_dims or q.operand_batching_dims:
        return False
    whole = (1 if d in picked else n for d, n in enumerate(target.aval.shape))
    return tuple(gather.params["slice_sizes"]) == tuple(whole)
