"""Masked columns: the steps of a loop leave out what a mask empties (`narrowed.py`).

Attention over blocks of queries, causal or in a window, has no scores behind a query or far before it. Steps that see
about the same keys become a loop of their own, over these.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..loop import Loop, as_loop
from ..narrowed import Columns, Part, Whole, check_outside, columns_of, in_parts
from ..normalize import LOOPS_AND_BRANCHES, map_inner
from ..outside import LOWEST
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..report import Decision
from ..visible import Known

NAME = "masked-columns"
FEWEST_COLUMNS = 128
MOST_STEPS = 256
MOST_PARTS = 8
MOST_UNITS = 32
# What must be left out, and what another part must leave out more, of all columns of all steps.
LEAST_LEFT_OUT = 0.2
LEAST_MORE = 0.04
LEAST_SECONDS = 2e-4


@dataclass(frozen=True)
class MaskedColumns:
    """The pass. Bound: each mask of each loop is looked at once, in each of its steps."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops in parts, and a decision for each loop with a mask."""
        if not {Exactness.FINITE, Exactness.REASSOCIATES} <= context.allowed:
            return program, []
        walk = _Walk(context)
        new = walk.level(Known(Level(program.jaxpr)))
        return program if new is program.jaxpr else ClosedJaxpr(new, program.consts), walk.decisions


@dataclass(frozen=True)
class _Candidate:
    """A mask in a step: what it makes, where its columns are, and which of them each step sees."""

    seed: Var
    dim: int
    ranges: Sequence[tuple[int, int]]


@dataclass
class _Walk:
    context: Context
    decisions: list[Decision] = field(default_factory=list)

    def level(self, known: Known) -> Jaxpr:
        """A level of the program with its loops in parts; the same object if none is."""
        jaxpr = known.level.jaxpr
        edits: list[Edit] = []
        eqns: list[JaxprEqn] = []
        for place, eqn in enumerate(jaxpr.eqns):
            loop = as_loop(eqn) if eqn.primitive.name == "scan" else None
            edit = None if loop is None else self._loop(known, place, loop)
            if edit is not None:
                edits.append(edit)
            elif eqn.primitive.name in LOOPS_AND_BRANCHES:
                eqn = map_inner(eqn, partial(self._inside, known, loop))
            eqns.append(eqn)
        if any(a is not b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            jaxpr = with_equations(jaxpr, eqns)
        return apply_edits(jaxpr, edits)[0] if edits else jaxpr

    def _inside(self, known: Known, loop: Loop | None, inner: Any) -> Any:
        old = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        new = self.level(Known(Level(old)) if loop is None else known.step(loop, None))
        if new is old:
            return inner
        return ClosedJaxpr(new, inner.consts) if isinstance(inner, ClosedJaxpr) else new

    def _loop(self, known: Known, place: int, loop: Loop) -> Edit | None:
        if not 2 <= loop.length <= MOST_STEPS:
            return None
        if not any(max(v.aval.shape, default=0) >= FEWEST_COLUMNS for eqn in loop.body.eqns for v in eqn.outvars):
            return None
        steps = [known.step(loop, at) for at in range(loop.length)]
        refusal: Decision | None = None
        for one in _candidates(loop, steps):
            parts = _parts(one.ranges)
            width = one.seed.aval.shape[one.dim]
            left = sum(part.work for part in parts) / (width * loop.length)
            what = f"steps of {width} columns, of which a mask leaves {left:.0%}"
            try:
                columns = _checked(loop, one, parts, steps)
            except Whole as reason:
                line = where(loop.eqn)
                refusal = refusal or Decision(NAME, what, line, False, str(reason))
                continue
            eqns, results = in_parts(columns, parts)
            here = frozenset({place})
            why = f"what it empties is left out, in {len(parts)} loops"
            self.decisions.append(Decision(NAME, what, where(loop.eqn), True, why, exactness=Exactness.FINITE))
            return Edit(place, here, eqns, results, here)
        if refusal is not None:
            self.decisions.append(refusal)
        return None


def _checked(loop: Loop, one: _Candidate, parts: Sequence[Part], steps: Sequence[Known]) -> Columns:
    """The columns through a step, where what the parts leave out counts nowhere."""
    columns = columns_of(loop, one.seed, one.dim)
    for part in parts:
        seen = np.zeros(columns.length, bool)
        seen[part.low : part.high] = True
        if not seen.all():
            for at in range(part.first, part.last):
                check_outside(columns, steps[at], seen)
    return columns


def _candidates(loop: Loop, steps: Sequence[Known]) -> Iterator[_Candidate]:
    """The masks of a step that leave enough out."""
    for eqn in loop.body.eqns:
        if eqn.primitive.name not in ("select_n", "add") or len(eqn.outvars) != 1:
            continue
        (out,) = eqn.outvars
        for dim, n in enumerate(out.aval.shape):
            ranges = _ranges(eqn, dim, steps) if n >= FEWEST_COLUMNS else None
            if ranges is None:
                continue
            work = sum(part.work for part in _parts(ranges))
            if work <= (1 - LEAST_LEFT_OUT) * n * loop.length:
                yield _Candidate(out, dim, ranges)


def _visible(eqn: JaxprEqn, dim: int, known: Known) -> np.ndarray | None:
    """By column, whether something of it is left in a step; None where an equation is no mask."""
    if eqn.primitive.name == "add":
        for x in eqn.invars:
            number = known.counters.of(x)
            if number is not None and number.ndim > dim and number.shape[dim] > 1:
                return (number > LOWEST).any(tuple(d for d in range(number.ndim) if d != dim))
        return None
    which, *cases = eqn.invars
    if len(cases) != 2 or which.aval.shape != eqn.outvars[0].aval.shape:
        return None
    for k, case in enumerate(cases):
        number = known.counters.of(case)
        if number is not None and number.size == 1 and (number.item() == 0 or number.item() <= LOWEST):
            seen = known.seen(which, dim)
            return seen.anywhere if k == 0 else seen.rest.anywhere
    return None


def _ranges(eqn: JaxprEqn, dim: int, steps: Sequence[Known]) -> list[tuple[int, int]] | None:
    """The columns from the first to the last that each step sees; None where the first and the last see all."""
    n, found = eqn.outvars[0].aval.shape[dim], dict[int, tuple[int, int]]()
    for at in sorted(range(len(steps)), key=lambda at: at not in (0, len(steps) - 1)):
        visible = _visible(eqn, dim, steps[at])
        if visible is None or (len(found) == 2 and all(one == (0, n) for one in found.values())):
            return None
        (places,) = np.nonzero(np.broadcast_to(visible, (n,)))
        found[at] = (int(places[0]), int(places[-1]) + 1) if places.size else (0, 1)
    return [found[at] for at in range(len(steps))]


def _parts(ranges: Sequence[tuple[int, int]]) -> list[Part]:
    """Steps that follow each other in parts: of each number of parts the cheapest, as many as pay."""
    unit = -(-len(ranges) // MOST_UNITS)
    units = [_joined(ranges, first, min(first + unit, len(ranges))) for first in range(0, len(ranges), unit)]
    best: list[tuple[int, list[Part]]] = [(0, [])] + [(sum(p.work for p in units), units)] * len(units)
    for end in range(1, len(units) + 1):
        whole = _joined(ranges, 0, units[end - 1].last)
        best[end] = whole.work, [whole]
    least_more = LEAST_MORE * best[-1][0]
    for _ in range(MOST_PARTS - 1):
        more = list(best)
        for end in range(1, len(units) + 1):
            for at in range(1, end):
                work, parts = best[at]
                last = _joined(ranges, units[at].first, units[end - 1].last)
                if work + last.work < more[end][0]:
                    more[end] = work + last.work, [*parts, last]
        if more[-1][0] > best[-1][0] - least_more:
            break
        best = more
    return best[-1][1]


def _joined(ranges: Sequence[tuple[int, int]], first: int, last: int) -> Part:
    lows, highs = zip(*ranges[first:last], strict=True)
    return Part(first, last, min(lows), max(highs))
