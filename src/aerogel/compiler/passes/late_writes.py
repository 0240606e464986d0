"""Late writes: what takes the place of an argument is made behind all who read that (see `late_writes.py`)."""

from typing import ClassVar

from aerogel._jax import Atom, Jaxpr, Var

from ..cost import nbytes
from ..exactness import Exactness
from ..level import Level
from ..levels import Around, rewrite_nested
from ..loop import as_loop
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from ..residuals.late_fills import filled_late, late_fills
from ..residuals.late_writes import LateWrite, late_writes, ordered, updates

NAME = "late-writes"
WHAT = "an argument is read by all before what takes its place is made"
REASON = "donated, it would be copied"
FILL = "what a loop begins with is filled when it begins"
HELD = "it would be held from the start"


@record
class LateWrites:
    """The pass. Bound: around each argument few equations are looked at. Rules do not see through what it writes."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such updates put in order, and a decision for each argument."""
        decisions: list[Decision] = []

        def one_level(jaxpr: Jaxpr, around: Around) -> Jaxpr:
            level = Level(jaxpr)
            pairs = _carries(jaxpr, around) if around else updates(level) if context.outermost else []
            new, made = ordered(level, late_writes(level, pairs, in_loop=bool(around)))
            decisions.extend(_decision(level, one) for one in made)
            return new if around else _filled_late(Level(new), decisions)

        return rewrite_nested(program, one_level), decisions


def _filled_late(level: Level, decisions: list[Decision]) -> Jaxpr:
    """The level whose loops are filled when they begin, with a decision for each."""
    chosen = late_fills(level)
    for one in chosen:
        at = where(level.eqns[one.place])
        decisions.append(Decision(NAME, FILL, at, True, HELD, peak_bytes_saved=one.bytes))
    return filled_late(level, chosen) if chosen else level.jaxpr


def _carries(jaxpr: Jaxpr, around: Around) -> list[tuple[Var, Atom]]:
    """The carries of a loop, at the start and at the end of a step."""
    loop = as_loop(around[-1])
    if loop is None:
        return []
    first, count = len(loop.consts), len(loop.init)
    return list(zip(jaxpr.invars[first : first + count], jaxpr.outvars[:count], strict=True))


def _decision(level: Level, one: LateWrite) -> Decision:
    size = nbytes(one.argument.aval)
    return Decision(NAME, WHAT, where(level.eqns[one.writers[0]]), True, REASON, bytes_saved=2 * size)
