"""Loop commoning: what the step before has computed is not computed again (see `commoning.py`)."""

from aerogel._jax import JaxprEqn

from ..exactness import Exactness
from ..levels import rewrite_loops
from ..loop import Loop
from ..loops.commoning import commoned, find_commoning
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "loop-commoning"


@record
class LoopCommoning:
    """The pass. Bound: each loop is looked at once."""

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values carried from step to step, and a decision for each loop that has any."""
        decisions: list[Decision] = []
        return rewrite_loops(program, lambda loop, _: _loop(loop, context, decisions)), decisions


def _loop(loop: Loop, context: Context, decisions: list[Decision]) -> list[JaxprEqn] | None:
    found = None if loop.length < 2 else find_commoning(loop, context.machine)
    if found is None:
        return None
    pays = found.seconds > 0
    named = max((loop.body.eqns[k] for k in found.dead), key=lambda e: e.outvars[0].aval.size, default=loop.eqn)
    what = f"`{named.primitive.name}` of a step is that of the step before, which computed it for the next carry"
    reason = f"saves {1e6 * found.seconds:.1f} us a step, of {loop.length}" if pays else "carrying it costs as much"
    decisions.append(Decision(NAME, what, where(named), pays, reason))
    return commoned(loop, found) if pays else None
