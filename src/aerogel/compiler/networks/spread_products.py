"""Products with what indices spread in zeros: the gradient of rows that were picked from a product.

JAX adds what comes back for the rows into a matrix of zeros, and multiplies all of it. Rows of the other factor are
picked and multiplied with what is spread instead, or the product of what is spread is spread: `spread(u) @ B.T` is
`spread(u @ B.T)`, and `A.T @ spread(u)` is `A[i].T @ u`. What is added out of bounds, nowhere, stays out.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import count
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..apart import Priced, cost_of
from ..cost import Machine
from ..known.records import Constant, Facts, the
from ..level import Edit, Level
from ..program import Builder
from .contraction import product
from .network import Label, Labels
from .network_reader import FLOATS, is_plain
from .picked_products import counted, in_order, is_diagonal, pays, picked


def spread_products(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The products with what indices spread in zeros that are cheaper with what is spread: their gradients."""
    scatters = (place for place, eqn in enumerate(level.eqns) if eqn.primitive.name == "scatter-add")
    return [one for place in scatters for one in _spread(level, facts, machine, place)]


def _spread(level: Level, facts: Facts, machine: Machine, place: int) -> list[Priced]:
    eqn = level.eqns[place]
    (x, _, _), zero = eqn.invars, the(Constant, facts.of(eqn.invars[0]))
    if zero is None or zero.value != 0 or not _spreads(eqn):
        return []
    if is_diagonal(facts, eqn.invars[1], eqn.params["dimension_numbers"].scatter_dims_to_operand_dims):
        return []
    gone, read = {place}, list[tuple[int, int, tuple[int, ...]]]()  # products, the operand, and how it is turned
    waiting = [(eqn.outvars[0], tuple(range(len(x.aval.shape))))]
    while waiting:
        var, order = waiting.pop()
        for k in level.readers(var):
            reader = level.eqns[k] if k >= 0 else None
            if reader is not None and reader.primitive.name == "transpose":
                waiting.append((reader.outvars[0], tuple(order[d] for d in reader.params["permutation"])))
                gone.add(k)
            elif reader is not None and reader.primitive.name == "dot_general" and is_plain(reader) and k not in gone:
                if reader.invars[0] is reader.invars[1]:
                    return []
                read.append((k, list(reader.invars).index(var), order))
                gone.add(k)
            else:
                return []
    made = [(k, Builder(level.eqns[k]), side, order) for k, side, order in read]
    numbers = eqn.params["dimension_numbers"]
    whole = counted(level, facts, eqn, numbers.scatter_dims_to_operand_dims, numbers.scatter_indices_batching_dims)
    results = [_Spreading(eqn, level.eqns[k], side, order, whole).emit(builder) for k, builder, side, order in made]
    outs = [level.eqns[k].outvars[0] for k, *_ in made]
    before = cost_of(level, [level.eqns[k] for k in sorted(gone)], outs, machine)
    after = cost_of(level, [one for _, builder, *_ in made for one in builder.eqns], results, machine)
    if not pays(before, after):
        return []
    now, then = before.seconds or 0.0, after.seconds or 0.0
    edits = [
        Edit(k, frozenset({k}), builder.eqns, {out: result}, frozenset({k}))
        for (k, builder, *_), out, result in zip(made, outs, results, strict=True)
    ]
    return [Priced((edit,), now, then) for edit in edits]


def _spreads(eqn: JaxprEqn) -> bool:
    """Whether a scatter adds to single places of some dimensions and to all of the others."""
    (x, index, updates), numbers = eqn.invars, eqn.params["dimension_numbers"]
    places = tuple(sorted(map(int, numbers.scatter_dims_to_operand_dims)))
    alone = {*places, *map(int, numbers.operand_batching_dims)}
    window = [n for d, n in enumerate(x.aval.shape) if d not in alone]
    return (
        str(x.aval.dtype) in FLOATS
        and bool(places)
        and places == tuple(sorted(map(int, numbers.inserted_window_dims)))
        and 0 not in (*x.aval.shape, *index.aval.shape)
        and [updates.aval.shape[int(d)] for d in numbers.update_window_dims] == window
    )


class _Spreading:
    """The labels of a product with what a scatter makes: of its indices, and of the product's dimensions."""

    def __init__(self, eqn: JaxprEqn, made: JaxprEqn, side: int, order: Sequence[int], whole: Mapping[int, int]):
        """Of a scatter and a product with its result.

        Args:
            side: which operand of the product that is.
            order: for each dimension of the operand, the one of the scatter's result that it is.
            whole: the dimensions of which all places are added to, along a dimension of the indices.
        """
        self.eqn, self.made, self.other = eqn, made, 1 - side
        numbers, fresh = self._numbers(), count()
        self.at: Labels = tuple(next(fresh) for _ in eqn.invars[1].aval.shape[:-1])
        batched = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
        batched |= whole
        rank = len(eqn.outvars[0].aval.shape)
        labels = [self.at[batched[d]] if d in batched else next(fresh) for d in range(rank)]
        # The label of each component of the indices, but of those that count.
        self.places = [None if d in whole else labels[d] for d in map(int, numbers.scatter_dims_to_operand_dims)]
        window = iter(one for one in labels if one not in self.places and one not in self.at)
        rest, inside = iter(self.at), {int(d) for d in numbers.update_window_dims}
        rank = len(eqn.invars[2].aval.shape)
        self.of_updates: Labels = tuple(next(window) if d in inside else next(rest) for d in range(rank))
        mine = [labels[d] for d in order]
        contract, batch = made.params["dimension_numbers"]
        met = {other: own for dims in (contract, batch) for own, other in zip(dims[side], dims[1 - side], strict=True)}
        shape = made.invars[1 - side].aval.shape
        theirs = [mine[met[d]] if d in met else next(fresh) for d in range(len(shape))]
        self.of_other: Labels = tuple(theirs)
        free = [
            [one for d, one in enumerate(own) if d not in (*contract[k], *batch[k])]
            for k, own in ((side, mine), (1 - side, theirs))
        ]
        free = free if side == 0 else free[::-1]
        self.out: Labels = tuple([*(mine[d] for d in batch[side]), *free[0], *free[1]])

    def emit(self, builder: Builder) -> Atom:
        """Adds the equations; the result."""
        _, index, updates = self.eqn.invars
        y, of_y = self.made.invars[self.other], list(self.of_other)
        for component, label in enumerate(self.places):
            if label is not None and label in of_y:
                y, of_y = self._read(builder, y, of_y, index, component, label)
        spread = [one for one in self.out if one in self.places]
        rest = [one for one in self.out if one not in self.places and one not in self.at]
        kept = (*self.at, *rest) if spread else self.out
        precision, aval = self.made.params["precision"], self.made.outvars[0].aval
        of_x, of_other = self.of_updates, tuple(of_y)

        def multiplied(x: Any, y: Any) -> Any:
            z = product(x, y, of_x, of_other, kept, precision, np.dtype(aval.dtype))
            return in_order(z, of_x, of_other, kept)

        (z,) = builder.call(multiplied, self._added(builder, updates, index), y)
        if not spread:
            return z
        dims = tuple(d for d, one in enumerate(self.out) if one in self.places)
        components = [self.places.index(self.out[d]) for d in dims]
        batch = tuple(d for d, one in enumerate(self.out) if one in self.at)
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(len(self.at), len(kept))),
            inserted_window_dims=dims,
            scatter_dims_to_operand_dims=dims,
            operand_batching_dims=batch,
            scatter_indices_batching_dims=tuple(self.at.index(self.out[d]) for d in batch),
        )
        mode = self.eqn.params["mode"]

        def added(z: Any, i: Any) -> Any:
            i = lax.concatenate([lax.slice_in_dim(i, k, k + 1, axis=-1) for k in components], i.ndim - 1)
            return lax.scatter_add(lax.full(aval.shape, 0, aval.dtype), i, z, numbers, mode=mode)

        return builder.call(added, z, index)[0]

    def _added(self, builder: Builder, updates: Atom, index: Atom) -> Atom:
        """What is spread, zeros where it is added nowhere: beside a zero of the other factor nan would be nan."""
        if self._is_clipped():
            return updates
        shape, dims = self.eqn.invars[0].aval.shape, self._numbers().scatter_dims_to_operand_dims
        sizes = {k: shape[int(d)] for k, d in enumerate(dims) if self.places[k] is not None}
        if not sizes:
            return updates
        at, of_updates = self.at, self.of_updates

        def there(u: Any, i: Any) -> Any:
            each = [(lax.index_in_dim(i, k, axis=-1, keepdims=False), n) for k, n in sizes.items()]
            is_there = reduce(lax.bitwise_and, ((k >= 0) & (k < n) for k, n in each))
            dims = [of_updates.index(one) for one in at]
            return lax.select(lax.broadcast_in_dim(is_there, u.shape, dims), u, lax.full_like(u, 0))

        return builder.call(there, updates, index)[0]

    def _is_clipped(self) -> bool:
        return self.eqn.params["mode"] == lax.GatherScatterMode.CLIP

    def _numbers(self) -> Any:
        return self.eqn.params["dimension_numbers"]

    def _read(
        self, builder: Builder, y: Atom, labels: list[Label], index: Atom, component: int, label: Label
    ) -> tuple[Atom, list[Label]]:
        # Out of bounds a scatter adds nothing, unless it is told to take the nearest place.
        if self._is_clipped():
            return picked(builder, y, labels, self.at, index, component, label, lax.GatherScatterMode.CLIP, None)
        mode = lax.GatherScatterMode.FILL_OR_DROP
        return picked(builder, y, labels, self.at, index, component, label, mode, 0)
