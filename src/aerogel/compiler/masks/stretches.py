"""The masks of a loop's steps, and which of its steps should become a loop of their own."""

from collections.abc import Iterator, Sequence

import numpy as np

from aerogel._jax import JaxprEqn, Var

from ..loop import Loop
from ..record import record
from .outside import seen_columns
from .visible import Known

FEWEST_COLUMNS = 128
MOST_STRETCHES = 8
MOST_UNITS = 32
# What must be left out, and what another stretch must leave out more, of all columns of all steps.
LEAST_LEFT_OUT = 0.2
LEAST_MORE = 0.04


@record
class Stretch:
    """Consecutive steps of a loop, and the columns that they see together.

    Attributes:
        first: the first step.
        last: the one behind the last.
        low: the first column.
        high: the one behind the last.
    """

    first: int
    last: int
    low: int
    high: int

    @property
    def work(self) -> int:
        """Steps times columns."""
        return (self.last - self.first) * (self.high - self.low)


@record
class Candidate:
    """A mask in a step: what it makes, where its columns are, and which of them each step sees."""

    seed: Var
    dim: int
    ranges: Sequence[tuple[int, int]]


def may_mask_columns(eqn: JaxprEqn) -> bool:
    """Whether an equation may mask columns, of which there are many."""
    named = eqn.primitive.name in ("select_n", "add") and len(eqn.outvars) == 1
    return named and max(eqn.outvars[0].aval.shape, default=0) >= FEWEST_COLUMNS


def candidates(loop: Loop, steps: Sequence[Known]) -> Iterator[Candidate]:
    """The masks of a step that leave enough out."""
    for eqn in loop.body.eqns:
        if not may_mask_columns(eqn):
            continue
        (out,) = eqn.outvars
        for dim, n in enumerate(out.aval.shape):
            ranges = _ranges(eqn, dim, steps) if n >= FEWEST_COLUMNS else None
            if ranges is None:
                continue
            work = sum(part.work for part in stretched(ranges))
            if work <= (1 - LEAST_LEFT_OUT) * n * loop.length:
                yield Candidate(out, dim, ranges)


def _ranges(eqn: JaxprEqn, dim: int, steps: Sequence[Known]) -> list[tuple[int, int]] | None:
    """The columns from the first to the last that each step sees; None where the first and the last see all."""
    n, found = eqn.outvars[0].aval.shape[dim], dict[int, tuple[int, int]]()
    for at in sorted(range(len(steps)), key=lambda at: at not in (0, len(steps) - 1)):
        visible = seen_columns(eqn, dim, steps[at])
        if visible is None or (len(found) == 2 and all(one == (0, n) for one in found.values())):
            return None
        (places,) = np.nonzero(np.broadcast_to(visible, (n,)))
        found[at] = (int(places[0]), int(places[-1]) + 1) if places.size else (0, 1)
    return [found[at] for at in range(len(steps))]


def stretched(ranges: Sequence[tuple[int, int]]) -> list[Stretch]:
    """Steps that follow each other in parts: of each number of parts the cheapest, as many as pay."""
    unit = -(-len(ranges) // MOST_UNITS)
    units = [_joined(ranges, first, min(first + unit, len(ranges))) for first in range(0, len(ranges), unit)]
    best: list[tuple[int, list[Stretch]]] = [(0, [])] + [(sum(p.work for p in units), units)] * len(units)
    for end in range(1, len(units) + 1):
        whole = _joined(ranges, 0, units[end - 1].last)
        best[end] = whole.work, [whole]
    least_more = LEAST_MORE * best[-1][0]
    for _ in range(MOST_STRETCHES - 1):
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


def _joined(ranges: Sequence[tuple[int, int]], first: int, last: int) -> Stretch:
    lows, highs = zip(*ranges[first:last], strict=True)
    return Stretch(first, last, min(lows), max(highs))
