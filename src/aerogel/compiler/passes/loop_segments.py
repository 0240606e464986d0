"""Loops in segments: a gradient runs the steps of a loop again instead of storing something of each of them.

See `segments.py` and docs/explanation/residual-choice.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Jaxpr

from ..cost import Machine, jaxpr_seconds
from ..cost.account import jaxpr_cost
from ..cost.vector_code import with_vector_code
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import as_loop
from ..pipeline import Context, broken_limit
from ..program import Program, is_var, where
from ..record import record
from ..report import Decision
from ..residuals.derived import derived_carries
from ..residuals.residuals import compared, needed_by_loops
from ..residuals.segments import Pair, in_segments
from ..streams.stream_plan import HUGE
from .residual_choice import choose_residuals

NAME = "loop-segments"
# Of the memory that both loops take at most this much may be left, and of their time.
FEWER_BYTES = 0.5
WORTH = 0.9
# The same of the time of loops that may not run at all otherwise: half of a gradient's time is run again at most.
WORTH_OF_HUGE = 1.7
FEWEST_STEPS = 4


@record
class LoopSegments:
    """The pass. Bound: a pair of loops is looked at once. What the loops store that stay whole is chosen finally.

    Attributes:
        least_bytes: the size of what is stored from which on that is too much, whatever time is predicted; without it
            what the machine has as slow to allocate, and the prediction decides. An eighth of a limit on memory that
            the program would break.
    """

    after_differentiation: ClassVar = True

    least_bytes: int | None = None
    name: str = NAME
    exactness: Exactness = Exactness.NO_WORSE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with pairs of its loops in segments, and a decision for each."""
        limit = broken_limit(program, context)
        walk = _Walk(context, self.least_bytes if limit is None else limit // 8)
        return rewrite_levels(program, walk.level), walk.decisions


@dataclass
class _Walk:
    context: Context
    least_bytes: int | None
    decisions: list[Decision] = field(default_factory=list)

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        """One level; the same object when nothing changes."""
        level = Level(jaxpr)
        edits: list[Edit] = []
        touched: set[int] = set()
        for place in range(len(jaxpr.eqns)):
            found = pair_at(level, place, self.context.machine, self.least_bytes)
            if found is None or not touched.isdisjoint(found[1]):
                continue
            made, decision = judged(level, *found, self.context.machine, self.least_bytes is not None)
            self.decisions.append(decision)
            if decision.fired:
                edits += made
                touched.update(found[1])
        if edits:
            jaxpr, _ = apply_edits(jaxpr, edits)
        return choose_residuals(jaxpr, self.context.machine, self.decisions)


def pair_at(
    level: Level, place: int, machine: Machine, least_bytes: int | None = None
) -> tuple[Pair, tuple[int, int]] | None:
    """The loop at a place with the one that reads what it stores, if that is too much to stay where it is.

    That is `least_bytes` or more, and without these what is slow to allocate.
    """
    loop = as_loop(level.eqns[place])
    if loop is None:
        return None
    needed, readers = needed_by_loops(level, loop)
    second = as_loop(level.eqns[readers[0]]) if len(readers) == 1 else None
    if second is None or loop.length < FEWEST_STEPS or compared(level, needed, readers):
        return None
    pair = Pair(loop, second, frozenset(needed), derived_carries(level, loop))
    least = machine.fresh_bytes if least_bytes is None else least_bytes
    return (pair, (place, readers[0])) if pair.residual_bytes > least else None


def judged(
    level: Level, pair: Pair, places: tuple[int, int], machine: Machine, at_any_price: bool = False
) -> tuple[Sequence[Edit], Decision]:
    """The edits that run a pair in segments, and whether that pays."""
    made, vector = in_segments(pair, places), with_vector_code(machine)
    forms = [_alone(level, places, edits, machine) for edits in ((), made)]
    seconds = [jaxpr_seconds(jaxpr, vector) for jaxpr in forms]
    peaks = [jaxpr_cost(jaxpr).peak_bytes for jaxpr in forms]
    worth = WORTH_OF_HUGE if peaks[0] > HUGE else WORTH
    pays = peaks[1] <= FEWER_BYTES * peaks[0] and seconds[1] <= worth * seconds[0]
    fired = pays or at_any_price
    saved = peaks[0] - peaks[1] if fired else 0
    old, new = (f"{peak / 1e6:.1f} MB and {1e3 * one:.1f} ms" for peak, one in zip(peaks, seconds, strict=True))
    return made, Decision(
        NAME,
        f"a gradient runs {pair.first.length} steps again, {pair.segment_length()} at a time",
        where(pair.first.eqn),
        fired,
        f"it takes {new} instead of {old}" if fired else f"it would take {new} instead of {old}",
        bytes_saved=2 * saved,
        peak_bytes_saved=saved,
        exactness=Exactness.NO_WORSE,
    )


def _alone(level: Level, places: tuple[int, int], edits: Sequence[Edit], machine: Machine) -> Jaxpr:
    """Both loops as a program of their own, with what is stored in it chosen."""
    eqns = [level.eqns[place] for place in places]
    made = [v for eqn in eqns for v in eqn.outvars]
    read = dict.fromkeys(x for eqn in eqns for x in eqn.invars if is_var(x) and x not in made)
    outs = [v for v in made if any(k not in places for k in level.readers(v))]
    jaxpr = _jax.new_jaxpr(level.jaxpr, list(read), outs, eqns, ())
    if edits:
        at = [(edit, frozenset((places.index(edit.place),))) for edit in edits]
        jaxpr, _ = apply_edits(jaxpr, [replace(edit, place=min(to), gone=to, touched=to) for edit, to in at])
    return rewrite_levels(ClosedJaxpr(jaxpr, ()), lambda one: choose_residuals(one, machine, [])).jaxpr
