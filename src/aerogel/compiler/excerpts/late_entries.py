"""Values that are zeros, or one number in each row, but for one entry of each: what is linear is done for the entry.

Such are the derivative of what is picked of each row, zeros to which an entry is added, and one-hot rows. JAX writes
them out, divides, multiplies and sums up all of it, as large as what was picked from: the way back from
`log(softmax(z))[arange(n), t]` through the logarithm, the quotient and the exponential, and the product of smoothed
labels with all log-probabilities. Here each operation is done for the entry alone, with what is picked of the other
operand (`early_picks.py`), and for the row's number; something else that is added is kept beside them, and in the end,
where the value is read by what is not linear, the entries are added to it in place.

Nothing is multiplied by what was added beside: of `(p - one_hot) * x` the terms may cancel in the entry, exactly.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.rebind import bind, shape_of
from ..fusion.canonical import one_entry, sums_rows
from ..known.picks import batched_pick
from ..known.records import Constant, Facts, OneHot, the
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record
from .early_picks import FEW, Picking, RowsGather
from .entry_places import EntryPlaces

ADDS = ("add", "add_any", "sub")
SCALES = ("mul", "div")
MOST_VALUES = 24  # that are made of one value
MOST_ENDS = 2  # values that the entries are added to: each takes a pass over the indices, and may be copied


@record
class _Entries:
    """A value: `rest`, if there is any, and `row` in each row, if it is no zero, and `entry` at the places.

    Attributes:
        work: by how many operations on whole values it was made.
    """

    entry: Atom
    row: Atom | None = None
    rest: Atom | None = None
    work: int = 0


@dataclass
class _Late:
    """The values that are linear in one value, anew.

    Attributes:
        is_stored: whether XLA stores that value, so that it is worth something if it is not read any more.
        results: what stands for sums, and for what the entries are added to in the end.
    """

    level: Level
    places: EntryPlaces
    builder: Builder
    picking: Picking
    is_stored: bool
    found: dict[Var, _Entries] = field(default_factory=dict)
    results: dict[Var, Atom] = field(default_factory=dict)

    def follow(self, whole: Var, entries: _Entries) -> bool:
        """Whether something is gained by writing anew what is made of a value."""
        self.found[whole] = entries
        ends = self._ends(whole)
        if ends is None:
            return False
        late = [v for v, is_result in ends.items() if self._is_added_late(v, is_result)]
        if self.is_stored and (len(late) < len(ends) or len(late) > MOST_ENDS):
            return False
        for v in late[:MOST_ENDS]:
            self.results[v] = self.builder.as_weak_as(v, self._whole(self.found[v]))
        return any(one.work for one in self.found.values()) if self.is_stored else bool(self.results)

    def _ends(self, whole: Var) -> dict[Var, bool] | None:
        """Values that are read as they are, and whether as results alone; None if there is too much to write anew."""
        waiting, ends = sorted(self.level.readers(whole)), dict[Var, bool]()
        while waiting:
            place = heapq.heappop(waiting)
            if place < 0 or waiting[:1] == [place]:
                continue  # a result, or read twice
            eqn = self.level.eqns[place]
            reads = [x for x in dict.fromkeys(filter(is_var, eqn.invars)) if x in self.found]
            made = self._read(eqn, reads)
            if isinstance(made, _Entries):
                self.found[eqn.outvars[0]] = made
                for reader in self.level.readers(eqn.outvars[0]):
                    heapq.heappush(waiting, reader)
            elif not made:
                ends.update(dict.fromkeys(reads, False))
            if len(self.found) > MOST_VALUES:
                return None
        for value in self.found:
            if -1 in self.level.readers(value):
                ends.setdefault(value, True)
        return ends

    def _is_added_late(self, value: Var, is_result: bool) -> bool:
        entries = self.found[value]
        if entries.rest is None and entries.row is None:
            return False
        return self.is_stored or (is_result and entries.work > 0)

    def _whole(self, entries: _Entries) -> Atom:
        rest = entries.rest
        if rest is None:
            assert entries.row is not None, "entries alone are added to nothing"
            rest = self._spread(entries.row)
        elif entries.row is not None:
            (rest,) = self.builder.call(lax.add, rest, self._spread(entries.row))
        return self.builder.call(self.places.added, rest, self.places.index, entries.entry)[0]

    def _spread(self, row: Atom) -> Atom:
        shape = self.places.shape
        return self.builder.call(lambda x: lax.broadcast_in_dim(x, shape, tuple(range(len(shape)))), row)[0]

    def _read(self, eqn: JaxprEqn, reads: Sequence[Var]) -> _Entries | bool:
        """What an equation makes of values; True of a sum, which is known; False if it is to read them themselves."""
        name, value, entries = eqn.primitive.name, reads[0], self.found[reads[0]]
        if len(eqn.outvars) != 1 or eqn.effects:
            return False
        (out,) = eqn.outvars
        if sums_rows(eqn, self.places.dim) and eqn.params.get("out_sharding") is None:
            total = self.builder.as_weak_as(out, self._summed(eqn, entries))
            if total.aval == out.aval:
                self.results[out] = total
            return out in self.results
        if out.aval.shape != value.aval.shape or not jnp.issubdtype(out.aval.dtype, jnp.floating):
            return False
        if name in ("neg", "convert_element_type"):
            return self._each(entries, lambda x: self._bound(eqn, x))
        if (name not in ADDS and name not in SCALES) or any(x.aval.dtype != out.aval.dtype for x in eqn.invars):
            return False
        one, two = eqn.invars
        if len(reads) == 2 and name in ADDS:
            return self._joined(eqn, *(self.found[x] for x in reads))
        if one is two or len(reads) == 2 or (name == "div" and one is not value):
            return False
        other, first = (two, True) if one is value else (one, False)
        picked = self._as_entries(self.picking.entry(other, 0))
        is_row = not self.picking.varies(other)
        if name in ADDS:
            return self._added(eqn, entries, (other, picked if is_row else None), first)
        return self._scaled(eqn, entries, (other, picked), is_row, first)

    def _each(self, entries: _Entries, of: Callable[[Atom], Atom]) -> _Entries:
        row, rest = (None if x is None else of(x) for x in (entries.row, entries.rest))
        return _Entries(of(entries.entry), row, rest, entries.work)

    def _negative(self, x: Atom) -> Atom:
        return self.builder.call(lax.neg, x)[0]

    def _joined(self, eqn: JaxprEqn, one: _Entries, other: _Entries) -> _Entries:
        """Two values, one added to the other or taken from it."""

        def join(x: Atom | None, y: Atom | None) -> Atom | None:
            if x is None and y is not None and eqn.primitive.name == "sub":
                return self._negative(y)
            return (x if y is None else y) if x is None or y is None else self._bound(eqn, x, y)

        entry = self._bound(eqn, one.entry, other.entry)
        return _Entries(entry, join(one.row, other.row), join(one.rest, other.rest), one.work + other.work + 1)

    def _summed(self, eqn: JaxprEqn, entries: _Entries) -> Atom:
        (total,) = self.builder.call(self.places.summed, self.places.index, entries.entry)
        if entries.row is not None:
            dim, size = self.places.dim, self.places.shape[self.places.dim]
            times = self.builder.call(lambda x: lax.squeeze(x * np.asarray(size, x.dtype), [dim]), entries.row)[0]
            (total,) = self.builder.call(lax.add, times, total)
        if entries.rest is not None:
            (total,) = self.builder.call(lax.add, self._bound(eqn, entries.rest), total)
        return total

    def _bound(self, eqn: JaxprEqn, *xs: Atom) -> Atom:
        return self.builder.call(lambda *vs: bind(eqn, vs, eqn.params), *xs)[0]

    def _as_entries(self, x: Atom) -> Atom:
        shape = self.places.entries
        if shape_of(x) == shape:
            return x
        return self.builder.call(lambda v: lax.broadcast_in_dim(v, shape, tuple(range(v.ndim))), x)[0]

    def _added(self, eqn: JaxprEqn, entries: _Entries, other: tuple[Atom, Atom | None], first: bool) -> _Entries:
        """With something added: a number of each row, or any value."""
        whole, row = other
        if eqn.primitive.name == "sub" and not first:  # `other - value`
            entries = self._each(entries, self._negative)
        elif eqn.primitive.name == "sub":
            whole, row = self._negative(whole), None if row is None else self._negative(row)
        entry, mine, rest = entries.entry, entries.row, entries.rest
        if row is not None:
            return replace(entries, row=row if mine is None else self.builder.call(lax.add, mine, row)[0])
        if shape_of(whole) != self.places.shape:
            whole = self._spread(whole)
        # XLA adds in place to what zeros are added to first, and to no more.
        more = 0 if rest is None and mine is None else 1
        rest = whole if rest is None else self.builder.call(lax.add, rest, whole)[0]
        return _Entries(entry, mine, rest, entries.work + more)

    def _scaled(
        self, eqn: JaxprEqn, entries: _Entries, other: tuple[Atom, Atom], is_row: bool, first: bool
    ) -> _Entries | bool:
        """Times something, or divided by it."""
        if entries.rest is not None:
            return False
        whole, picked = other
        ordered = (lambda x, y: (x, y)) if first else (lambda x, y: (y, x))
        entry = self._bound(eqn, *ordered(entries.entry, picked))
        if entries.row is None or is_row:
            row = None if entries.row is None else self._bound(eqn, *ordered(entries.row, picked))
            return _Entries(entry, row, None, entries.work + 1)
        return _Entries(entry, None, self._bound(eqn, *ordered(self._spread(entries.row), whole)), entries.work + 1)


def late_entries(level: Level, place: int, facts: Facts) -> list[Edit]:
    """An edit that does for the entries alone what is linear in the value made at `place`; none where it is no such."""
    eqn = level.eqns[place]
    if any(_jax.explicit_mesh(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return []
    builder = Builder(eqn)
    start = _scattered(level, place, builder) if eqn.primitive.name == "scatter-add" else _hot(eqn, facts, builder)
    (out,) = eqn.outvars
    if start is None or FEW * start[1].entry.aval.size > out.aval.size:
        return []
    places, entries = start
    late = _Late(level, places, builder, _picking(level, places, out, builder), eqn.primitive.name == "scatter-add")
    if not late.follow(out, entries):
        return []
    gone = frozenset(level.made_by[v] for v in late.results)
    return [Edit(place, gone, builder.eqns, late.results, gone | {place})]


def _scattered(level: Level, place: int, builder: Builder) -> tuple[EntryPlaces, _Entries] | None:
    """Zeros to which a scatter adds an entry in each row."""
    eqn = level.eqns[place]
    one = one_entry(level, eqn)
    if one is None:  # `zeros.at[arange(n), t].add(v)` counts its rows: as a scatter along one dimension it has none
        edit = batched_pick(level, place)
        for k, made in enumerate(() if edit is None else edit.eqns):
            if made.primitive.name == "scatter-add" and edit is not None:
                builder.eqns += edit.eqns[:k]
                eqn, one = made, one_entry(level, made)
    if one is None:
        return None
    (_, index, entry), (out,) = eqn.invars, eqn.outvars
    (index,) = builder.call(one.index, index)
    return EntryPlaces(tuple(out.aval.shape), one.dim, index, eqn.params["mode"]), _Entries(entry)


def _hot(eqn: JaxprEqn, facts: Facts, builder: Builder) -> tuple[EntryPlaces, _Entries] | None:
    """One-hot rows of floats; or one number there, and another one elsewhere."""
    (out,) = eqn.outvars
    known, numbers = the(OneHot, facts.of(eqn.invars[0] if eqn.primitive.name == "select_n" else out)), (0, 1)
    if known is None or not jnp.issubdtype(out.aval.dtype, jnp.floating) or eqn.invars[0].aval.dtype != bool:
        return None
    if 0 in out.aval.shape or np.dtype(known.index.aval.dtype).itemsize < 4 or eqn.params.get("sharding") is not None:
        return None
    if eqn.primitive.name == "select_n":
        cases = [the(Constant, facts.of(x)) for x in eqn.invars[1:]]
        numbers = tuple(one.value for one in cases if one is not None)
        if len(numbers) != 2 or len(cases) != 2 or not (0 <= numbers[0] <= numbers[1] < np.inf):
            return None
    shape, to = tuple(out.aval.shape), [d for d in known.along if d >= 0]
    places = EntryPlaces(shape, known.dim, known.index, lax.GatherScatterMode.FILL_OR_DROP)

    def aligned(index: Any) -> Any:
        index = lax.reshape(index, tuple(n for n, d in zip(index.shape, known.along, strict=True) if d >= 0))
        index = lax.transpose(index, sorted(range(len(to)), key=to.__getitem__))
        return lax.broadcast_in_dim(index, places.entries, sorted(to))

    (index,) = builder.call(aligned, known.index)
    rest, there = (np.asarray(x, out.aval.dtype) for x in numbers)
    (entry,) = builder.call(lambda: lax.full(places.entries, there - rest))
    (row,) = builder.call(lambda: lax.full(places.entries, rest))
    return replace(places, index=index), _Entries(entry, row if rest != 0 else None)


def _picking(level: Level, places: EntryPlaces, like: Var, builder: Builder) -> Picking:
    """What picks of values of the shape of `like`."""
    aside = Builder(builder.like)
    aside.call(places.picked, like, places.index)
    *before, gather = aside.eqns
    builder.eqns += before
    found = RowsGather.of(gather)
    assert found is not None, "entries of rows are picked along one dimension"
    return Picking(level, found, builder)
