"""Work on an odd number of short rows, in two parts: all rows but the last, and that one.

Entry by entry the rows become arrays with one axis, and XLA's code for an odd number of entries that two threads share
is scalar (`kernels/long_rows.py`): a softmax of 100,003 rows of 4 took 1.7 of plain JAX's time, and takes 0.6. What is
small may be read by either part; what is summed over the rows is the sum of both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax.numpy as jnp

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..axes import Axis, Mapped, Reduced, append_block, take_block
from ..axes.rebind import shape_of
from ..cost.primitives import DEAR
from ..kernels.long_rows import UNROLLED, is_halved
from ..kernels.opaque import by_itself
from ..level import Edit, Level, apply_edits
from ..program import Builder, is_var
from ..record import record
from .stream_growth import grow
from .streams import LIGHT, Stream

FEW_DEAR = 2  # a logsumexp has so many, which is as fast where it is joined
# What works on rows one by one beside what is light.
ROW_BY_ROW = LIGHT | {"pad", "concatenate", "rev", "gather", "scatter-add"}


@record
class OddRows:
    """Work on rows, of which a reduction with a short last axis is part.

    Attributes:
        eqn: the reduction.
        length: how many rows there are.
    """

    eqn: JaxprEqn
    length: int


def rows_apart(jaxpr: Jaxpr, reductions: Sequence[JaxprEqn]) -> tuple[Jaxpr, list[OddRows]]:
    """One level with the last of an odd number of rows worked on by itself, and where; the same object if nowhere.

    Args:
        jaxpr: the level.
        reductions: those of its equations that are made entry by entry.
    """
    odd = [eqn for eqn in reductions if _is_odd(eqn.invars[0])]
    if not odd:
        return jaxpr, []
    level = Level(jaxpr)
    edits: list[Edit] = []
    found: list[OddRows] = []
    places = {id(eqn): k for k, eqn in enumerate(level.eqns)}
    taken: set[int] = set()
    for eqn in odd:
        place, seed = places.get(id(eqn)), eqn.invars[0]
        if place is None or place in taken or not is_var(seed):  # it came of another, or is of its stream
            continue
        stream = _stream(level, seed, frozenset(taken))
        taken |= stream.answers.keys()
        # In another kernel the last bit may differ, and nothing would be equal to an extremum of all rows.
        compares = stream.searches or stream.refusals.keys() & stream.answers.keys()
        if place in stream.answers and not compares:
            edits.append(_in_two_parts(stream))
            found.append(OddRows(eqn, stream.length))
    if not edits:
        return jaxpr, []
    new, made = apply_edits(jaxpr, edits)
    return new, found[:made]


def _is_odd(x: Atom) -> bool:
    return is_halved(shape_of(x), x.aval.dtype.itemsize)


def _stream(level: Level, seed: Var, taken: frozenset[int]) -> Stream:
    """All work on the rows that `seed` is part of."""
    axis = next(k for k, n in enumerate(shape_of(seed)) if n != 1)
    length = shape_of(seed)[axis]
    eqns = level.eqns
    values = {v for eqn in eqns for v in (*eqn.outvars, *eqn.invars) if is_var(v)}
    rows = frozenset(v for v in values if length in shape_of(v) and v.aval.size <= UNROLLED * length)
    scope = (k for k, eqn in enumerate(eqns) if eqn.primitive.name in ROW_BY_ROW and not eqn.effects)
    short = frozenset(k for k in scope if all(v in rows or v.aval.size < length for v in eqns[k].outvars))
    return grow(level, rows, short - taken, seed, Axis(axis), None)


def _in_two_parts(stream: Stream) -> Edit:
    """The edit that makes of each equation of a stream two, for all rows but the last and for that one."""
    work = _Parts(stream)
    for place in sorted(stream.answers):
        work.take(stream.level.eqns[place], stream.answers[place], list(stream.reads(place)))
    gone = frozenset(stream.answers)
    return Edit(min(gone), gone, work.eqns, work.results, gone)


@dataclass
class _Parts:
    """Equations for both parts of the rows.

    Attributes:
        stream: the equations for all.
        made: what is there of each part.
        results: what stands for values as a whole.
        eqns: what came of the equations so far.
    """

    stream: Stream
    made: tuple[dict[Var, Atom], dict[Var, Atom]] = field(default_factory=lambda: ({}, {}))
    results: dict[Var, Atom] = field(default_factory=dict)
    eqns: list[JaxprEqn] = field(default_factory=list)

    def take(self, eqn: JaxprEqn, answer: Mapped | Reduced, reads: Sequence[tuple[Atom, Axis | None]]) -> None:
        """Adds what an equation does to each part."""
        builder = Builder(eqn)
        last = self.stream.length - 1
        parts = []
        for start, size, made in ((0, last, self.made[0]), (last, 1, self.made[1])):
            ins = [self._part(builder, x, axis, start, size, made) for x, axis in reads]
            parts.append(builder.call(partial(_listed, answer.block, start, size), *ins))
        if isinstance(answer, Reduced):
            both = builder.call(partial(_combined, answer.monoid.combine), *parts[0], *parts[1])
            for v, whole in zip(eqn.outvars, builder.call(answer.finish, *both), strict=True):
                self.results[v] = builder.as_weak_as(v, whole)
        else:
            for v, axis, *both in zip(eqn.outvars, answer.outs, *parts, strict=True):
                self._keep(builder, v, axis, both)
        self.eqns += builder.eqns

    def _part(self, builder: Builder, x: Atom, axis: Axis | None, start: int, size: int, made: dict[Var, Atom]) -> Atom:
        """Some rows of what an equation reads, or all of what is the same for each."""
        if isinstance(x, Literal):
            return x
        if axis is None:
            return self.results.get(x, x)
        as_known = self.stream.where.get(x) == axis
        if as_known and x in made:
            return made[x]
        whole = self.results.get(x, x)
        (part,) = builder.call(lambda v: take_block(v, axis, self.stream.length, start, size), whole)
        if as_known:
            made[x] = part
        return part

    def _keep(self, builder: Builder, v: Var, axis: Axis | None, parts: Sequence[Atom]) -> None:
        """Notes both parts of a value, and joins them where something reads the whole."""
        if axis is None:
            self.results[v] = builder.as_weak_as(v, parts[0])
            return
        for made, part in zip(self.made, parts, strict=True):
            made[v] = part
        if any(not self.stream.reads_blocks(k, v) for k in self.stream.level.readers(v)):
            (whole,) = builder.call(partial(self._joined, axis), *parts)
            self.results[v] = builder.as_weak_as(v, whole)

    def _joined(self, axis: Axis, rows: Any, last: Any) -> Any:
        """Both parts, one behind the other.

        What is one number for each row, with several dear functions on the way, is made by a kernel of its own. In the
        one that joins, XLA makes a value anew for each that reads it: entropies, `-sum(p * log p)`, took 1.6 of plain
        JAX's time, and take 0.4.
        """
        if rows.size == self.stream.length - 1 and self.is_dear and jnp.issubdtype(rows.dtype, jnp.floating):
            rows = by_itself(rows)
        return append_block(rows, last, axis)

    @cached_property
    def is_dear(self) -> bool:
        """Whether there are more than two functions that take long."""
        names = (self.stream.level.eqns[place].primitive.name for place in self.stream.answers)
        return sum(name in DEAR for name in names) > FEW_DEAR


def _listed(block: Callable[..., Any], start: int, size: int, *values: Any) -> list[Any]:
    return list(block(start, size, *values))


def _combined(combine: Callable[..., Any], *values: Any) -> list[Any]:
    """Two partial results, one behind the other, as one."""
    half = len(values) // 2
    return list(combine(values[:half], values[half:]))
