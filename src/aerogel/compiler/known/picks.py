"""Picking one entry of each row by its place: `logp[jnp.arange(n), labels]` as `jnp.take_along_axis` has it.

Indices that merely count the rows are batch dimensions of the gather, or of the scatter that is its derivative. In that
form each row is picked from alone, which mapped axes understand, and the loop over the rows need not be written.
"""

from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn

from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record
from ..zeros import is_zero


@record
class Pick:
    """One entry of each row of an operand: rows lie along dimension `dim`; `place` of the entry, for each row."""

    dim: int
    place: Atom


def batched_pick(level: Level, position: int) -> Edit | None:
    """The gather or scatter at `position` with its counted dimensions as batch dimensions; None if it has none."""
    eqn = level.eqns[position]
    found = counted_pick(level, eqn)
    if found is None or any(_jax.explicit_mesh(x.aval) for x in (*eqn.invars, *eqn.outvars)):
        return None
    out, p, builder = eqn.outvars[0], eqn.params, Builder(eqn)
    operand, shape = eqn.invars[0], eqn.invars[0].aval.shape
    rows = tuple(d for d in range(len(shape)) if d != found.dim)
    entries = tuple(1 if d == found.dim else n for d, n in enumerate(shape))

    def gather(x: Any, place: Any) -> Any:
        numbers = lax.GatherDimensionNumbers((), (found.dim,), (found.dim,), rows, rows)
        sizes, fill = (1,) * len(shape), p["fill_value"]
        places = lax.reshape(place, (*entries, 1))
        return lax.reshape(lax.gather(x, places, numbers, sizes, mode=p["mode"], fill_value=fill), out.aval.shape)

    def scatter(x: Any, place: Any, entry: Any) -> Any:
        numbers = lax.ScatterDimensionNumbers((), (found.dim,), (found.dim,), rows, rows)
        places = lax.reshape(place, (*entries, 1))
        return lax.scatter_add(x, places, lax.reshape(entry, entries), numbers, mode=p["mode"])

    reads = operand, found.place, *eqn.invars[2:]
    (result,) = builder.call(gather if eqn.primitive.name == "gather" else scatter, *reads)
    return Edit(position, frozenset({position}), builder.eqns, {out: result}, frozenset({position}))


def counted_pick(level: Level, eqn: JaxprEqn) -> Pick | None:
    """What a gather or scatter is that picks an entry of each row, or adds one to zeros, by indices that count rows."""
    operand, index = eqn.invars[:2]
    numbers, rank, p = eqn.params["dimension_numbers"], len(operand.aval.shape), eqn.params
    if eqn.primitive.name == "gather":
        window, alone, dims = numbers.offset_dims, numbers.collapsed_slice_dims, numbers.start_index_map
        matched = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        plain = all(n == 1 for n in p["slice_sizes"])
    else:
        window, alone, dims = (
            numbers.update_window_dims,
            numbers.inserted_window_dims,
            numbers.scatter_dims_to_operand_dims,
        )
        matched = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        plain = is_zeros(level, operand)
    counted = dict(matched)
    if window or not plain or len(dims) < 2 or {*alone, *counted} != set(range(rank)):
        return None
    columns = columns_of(level, index, len(dims))
    if columns is None or np.dtype(index.aval.dtype).itemsize < 4:
        return None
    places = {}
    for dim, column in zip(dims, columns, strict=True):
        along = counts_along(level, column)
        if along is not None and along not in counted.values() and column.aval.shape[along] == operand.aval.shape[dim]:
            counted[dim] = along
        else:
            places[dim] = column
    # the entries stand in the order of the rows
    if len(places) != 1 or [counted[d] for d in sorted(counted)] != list(range(len(index.aval.shape) - 1)):
        return None
    ((dim, place),) = places.items()
    return Pick(dim, place)


def untransposed_diagonal(level: Level, position: int) -> Edit | None:
    """The diagonal of a transposed matrix, `jnp.take_along_axis(x.T, jnp.arange(n)[:, None], 1)`, read from the matrix.

    A loss in both directions (CLIP's) picks from the logits and from their transpose; a loop over rows of the logits
    can take in what reads rows.
    """
    eqn = level.eqns[position]
    operand, index = eqn.invars
    numbers, shape = eqn.params["dimension_numbers"], operand.aval.shape
    maker = level.maker(operand)
    if maker is None or maker.primitive.name != "transpose" or len(shape) != 2 or shape[0] != shape[1]:
        return None
    if len(numbers.operand_batching_dims) != 1 or len(numbers.start_index_map) != 1 or numbers.offset_dims:
        return None
    if counts_along(level, index) != numbers.start_indices_batching_dims[0]:
        return None
    eqns = [eqn.replace(invars=[maker.invars[0], index])]
    return Edit(position, frozenset({position}), eqns, {}, frozenset({position}))


def is_zeros(level: Level, x: Atom) -> bool:
    """Whether an atom is an array of zeros."""
    if not is_var(x):
        return is_zero(x, set())
    maker = level.eqns[level.made_by[x]] if x in level.made_by else None
    return maker is not None and maker.primitive.name == "broadcast_in_dim" and is_zero(maker.invars[0], set())


def columns_of(level: Level, index: Atom, count: int) -> list[Atom] | None:
    """The parts of an array of indices, one for each dimension that is indexed, each with a last dimension of one."""
    maker = level.maker(index)
    if maker is None or maker.primitive.name != "concatenate" or len(maker.invars) != count:
        return None
    last = maker.params["dimension"] == len(index.aval.shape) - 1
    return list(maker.invars) if last and all(x.aval.shape[-1] == 1 for x in maker.invars) else None


def counts_along(level: Level, x: Atom) -> int | None:
    """The dimension along which an array of integers counts 0, 1, 2, ... and along no other; None if there is none."""
    maker = level.maker(x)
    if maker is None:
        return None
    name, p, shape = maker.primitive.name, maker.params, x.aval.shape
    if name == "iota":
        return p["dimension"]
    if name == "select_n":
        return _unwrapped(level, maker)
    if name not in ("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type"):
        return None
    source = maker.invars[0]
    if np.dtype(source.aval.dtype).kind not in "iu" or np.dtype(source.aval.dtype).itemsize < 4:
        return None
    along = counts_along(level, source)
    if along is None or name == "convert_element_type":
        return along
    if name == "broadcast_in_dim":
        dim = p["broadcast_dimensions"][along]
        return int(dim) if shape[dim] == source.aval.shape[along] else None
    if name == "transpose":
        return p["permutation"].index(along)
    wide = [[d for d, n in enumerate(dims) if n != 1] for dims in (source.aval.shape, shape)]
    same = [source.aval.shape[d] for d in wide[0]] == [shape[d] for d in wide[1]]
    return wide[1][wide[0].index(along)] if same and along in wide[0] else None


def _unwrapped(level: Level, eqn: JaxprEqn) -> int | None:
    """The dimension along which `where(i < 0, i + n, i)` counts: that of `i`, which never is below zero."""
    below, kept = eqn.invars[:2]
    maker = level.maker(below)
    if maker is None or maker.primitive.name != "lt" or maker.invars[0] is not kept or len(eqn.invars) != 3:
        return None
    zero = maker.invars[1]
    return counts_along(level, kept) if not is_var(zero) and is_zero(zero, set()) else None
