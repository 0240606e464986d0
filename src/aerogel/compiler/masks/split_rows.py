"""The rows of a level in groups, each of which reads only the columns that a mask leaves it: causal attention by hand.

Equations around a masked value run for each group of rows on their own; what all rows are summed to is added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, new_jaxpr, new_var

from ..axes import Axis, Reduced, take_block
from ..cost import nbytes
from ..level import Edit, Level
from ..program import Builder, copy_equation, is_var, substitute
from ..record import record
from ..streams.streams import groups, is_cheap, scope_of
from .outside import check_outside, seen_columns
from .through import Through, Whole, through
from .visible import Known, Part

# How many rows a group has at least, and how many groups there are at most.
FEWEST_ROWS = 128
MOST_GROUPS = 8
# Of a value around the masked one so much is large, too.
NEARLY_AS_LARGE = 2


@record
class Around:
    """Equations around a masked value as a program of their own.

    Attributes:
        places: of the equations in their level.
        jaxpr: the equations; each of its inputs is read once.
        reads: the value of the level that each input is.
        made: what stands in the jaxpr for what the level's equations make.
        results: the values of the level that others read, in the order of the jaxpr's results.
    """

    places: frozenset[int]
    jaxpr: Jaxpr
    reads: dict[Var, Var]
    made: dict[Var, Atom]
    results: tuple[Var, ...]


@record
class Grouped:
    """Rows in groups.

    Attributes:
        edit: what writes them.
        whole: what they stand for.
        count: how many groups there are.
        left: how much of all rows and columns they read.
    """

    edit: Edit
    whole: Around
    count: int
    left: float


def around(level: Level, seed: Var, alone: bool = False) -> Around:
    """The equations that read or make what is about as large as `seed`, and what makes their masks.

    Args:
        alone: whether numbers, and what is smaller than `seed`, do not join equations: several blocks of queries read
            one array of keys, which is nearly as large as they are, and are masked by one number.

    Raises:
        Whole: one of them has effects.
    """
    least = nbytes(seed.aval) // (1 if alone else NEARLY_AS_LARGE)
    found = groups(level, lambda v: nbytes(v.aval) >= least and not (alone and _is_number(level, v)))
    touching = next(places for values, places in found if seed in values)
    places = scope_of(level, touching)
    if any(level.eqns[place].effects for place in places):
        raise Whole("what is around it has effects")
    masks = _masks(level, places)
    made: dict[Var, Atom] = {}
    reads: dict[Var, Var] = {}
    eqns: list[JaxprEqn] = []
    for place in sorted(places | masks):
        eqn = level.eqns[place]
        invars: list[Atom] = []
        for x in eqn.invars:
            if is_var(x) and x not in made:
                own = new_var(x.aval)
                reads[own] = x
                invars.append(own)
            else:
                invars.append(substitute(x, made))
        eqns.append(copy_equation(eqn.replace(invars=invars), made))
    ends = (v for v in made if level.made_by[v] in places)
    results = tuple(v for v in ends if any(k not in places for k in level.readers(v)))
    jaxpr = new_jaxpr(level.jaxpr, list(reads), [made[v] for v in results], eqns, ())
    return Around(places, jaxpr, reads, made, results)


def _is_number(level: Level, v: Var) -> bool:
    """Whether a value is one number, repeated."""
    maker = level.maker(v)
    return maker is not None and maker.primitive.name == "broadcast_in_dim" and maker.invars[0].aval.size == 1


def _masks(level: Level, places: frozenset[int]) -> frozenset[int]:
    """The places of the equations that make the masks that others read, which groups make again."""
    found: set[int] = set()
    waiting = [x for place in places for x in level.eqns[place].invars]
    while waiting:
        x = waiting.pop()
        place = level.made_by.get(x) if is_var(x) else None
        if place is None or place in places or place in found or x.aval.dtype != np.bool_:
            continue
        if is_cheap(level.eqns[place]):
            found.add(place)
            waiting += level.eqns[place].invars
    return frozenset(found)


def in_groups(level: Level, known: Known, seed: Var, rows: int, columns: int, apart: bool = True) -> Grouped:
    """The equations around a masked value in groups of its rows; in one group, if they are not to be put `apart`.

    Raises:
        Whole: something needs all rows at once, or what a mask leaves out; or a mask leaves nothing out at both ends.
    """
    whole = around(level, seed, alone=not apart)
    inside = whole.made[seed]
    assert is_var(inside)
    across = through(whole.jaxpr, inside, Axis(rows))
    reduced = _reduced(whole, across)
    length = across.length
    count = max(2, min(MOST_GROUPS, length // FEWEST_ROWS)) if apart else 1
    bounds = list(pairwise(length * k // count for k in range(count + 1)))
    run = _Group(whole, across, reduced, known, inside, columns).run
    made = {ends: run(*ends) for ends in (bounds[0], bounds[-1])}
    # Of a diagonal that is masked all rows see all columns, and to write each group takes its time.
    if apart and all(width == seed.aval.shape[columns] for *_, width in made.values()):
        raise Whole("its first rows and its last ones see all columns")
    made |= {ends: run(*ends) for ends in bounds if ends not in made}
    groups = [made[ends] for ends in bounds]
    eqns = [eqn for new, _, _ in groups for eqn in new]
    work = sum(width * (last - first) for (first, last), (_, _, width) in zip(bounds, groups, strict=True))
    end = Builder(level.eqns[level.made_by[seed]])
    results: dict[Var, Atom] = {}
    for k, v in enumerate(whole.results):
        parts = [outs[k] for _, outs, _ in groups]
        results[v] = end.as_weak_as(v, _joined(end, across, whole.jaxpr.outvars[k], reduced, parts))
    edit = Edit(min(whole.places), whole.places, [*eqns, *end.eqns], results, whole.places)
    return Grouped(edit, whole, count, work / (length * seed.aval.shape[columns]))


def _reduced(whole: Around, across: Through) -> dict[Var, tuple[int, Reduced]]:
    """By result, the reduction of the rows that makes it: its place and what it is."""
    found: dict[Var, tuple[int, Reduced]] = {}
    for place, answer in across.answers.items():
        if isinstance(answer, Reduced):
            outs = whole.jaxpr.eqns[place].outvars
            if len(outs) != 1:
                raise Whole("a reduction of all rows has several results")
            found[outs[0]] = place, answer
    if any(is_var(x) and x in found for eqn in whole.jaxpr.eqns for x in eqn.invars):
        raise Whole("rows read what all rows make")
    for v in whole.jaxpr.outvars:
        if is_var(v) and v in across.where and not across.where[v].is_plain:
            raise Whole("rows lie apart in a result")
    return found


@dataclass
class _Group:
    whole: Around
    across: Through
    reduced: dict[Var, tuple[int, Reduced]]
    known: Known
    seed: Var
    columns: int

    def run(self, first: int, last: int) -> tuple[list[JaxprEqn], list[list[Atom]], int]:
        """The equations of some rows, what they give for each result, and how many columns they read."""
        whole = self.whole
        like = whole.jaxpr.eqns[0]
        builder, env = Builder(like), dict[Var, Atom]()
        for v in whole.reads:
            env[v] = _cut(builder, self.across, v, v, first, last - first)
        parts = self.across.cut(builder, env, first, last - first, finish=False)
        outs = [
            parts[self.reduced[v][0]] if is_var(v) and v in self.reduced else [substitute(v, env)]
            for v in whole.jaxpr.outvars
        ]
        flat = [x for one in outs for x in one]
        rows = new_jaxpr(whole.jaxpr, whole.jaxpr.invars, flat, builder.eqns, ())
        low, high, columns = self._columns(rows, env[self.seed])
        narrow = Builder(like)
        inner: dict[Var, Atom] = {}
        for v, x in whole.reads.items():
            inner[v] = _cut(narrow, columns, v, x, low, high - low)
        columns.cut(narrow, inner, low, high - low)
        ends = iter([self._padded(narrow, columns, x, substitute(x, inner), low, high) for x in flat])
        return narrow.eqns, [[next(ends) for _ in one] for one in outs], high - low

    def _columns(self, rows: Jaxpr, seed: Atom) -> tuple[int, int, Through]:
        assert is_var(seed)
        known = Part(Level(rows), around=self.known, reads=self.whole.reads)
        columns = through(rows, seed, Axis(self.columns))
        maker = known.level.maker(seed)
        seen = None if maker is None else seen_columns(maker, self.columns, known)
        if seen is None:
            raise Whole("it is not known which columns a mask leaves to some of the rows")
        (places,) = np.nonzero(np.broadcast_to(seen, (columns.length,)))
        low, high = (int(places[0]), int(places[-1]) + 1) if places.size else (0, 1)
        left = np.ones(columns.length, bool)
        left[low:high] = False
        if left.any():
            check_outside(columns, known, left, {})
        return low, high, columns

    def _padded(self, builder: Builder, columns: Through, x: Atom, made: Atom, low: int, high: int) -> Atom:
        """A result, with zeros in place of the columns that were left out."""
        axis = columns.where.get(x) if is_var(x) else None
        if axis is None or high - low == columns.length:
            return made
        if not axis.is_plain:
            raise Whole("columns lie apart in a result")
        sides = [(0, 0, 0)] * len(made.aval.shape)
        sides[axis.dim] = (low, columns.length - high, 0)
        return builder.call(partial(_with_zeros, sides=tuple(sides)), made)[0]


def _with_zeros(x: Any, sides: Sequence[tuple[int, int, int]]) -> Any:
    return lax.pad(x, lax.full((), 0, x.dtype), sides)


def _cut(builder: Builder, axis: Through, v: Var, x: Atom, low: int, size: int) -> Atom:
    """Part of what stands for `v` along an axis, if it has it."""
    at = axis.where.get(v)
    return x if at is None else builder.call(lambda x: take_block(x, at, axis.length, low, size), x)[0]


def _joined(
    end: Builder,
    across: Through,
    v: Atom,
    reduced: dict[Var, tuple[int, Reduced]],
    parts: Sequence[Sequence[Atom]],
) -> Atom:
    """A result of all rows, of what the groups give for it."""
    if isinstance(v, Literal):
        return v
    if v in reduced:
        answer = reduced[v][1]

        def total(*xs: Any) -> Any:
            each = len(xs) // len(parts)
            values = [tuple(xs[k : k + each]) for k in range(0, len(xs), each)]
            return list(answer.finish(*reduce(answer.monoid.combine, values)))

        return end.call(total, *(x for one in parts for x in one))[0]
    if v not in across.where:
        return parts[0][0]
    dim = across.where[v].dim
    return end.call(lambda *xs: lax.concatenate(xs, dim), *(one[0] for one in parts))[0]
