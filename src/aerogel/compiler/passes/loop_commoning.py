"""Loop commoning: what the step before has computed is not computed again (see `commoning.py`)."""

from dataclasses import dataclass

from aerogel._jax import Jaxpr, JaxprEqn

from ..commoning import commoned, find_commoning
from ..exactness import Exactness
from ..levels import rewrite_levels
from ..loop import as_loop
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..report import Decision

NAME = "loop-commoning"


@dataclass(frozen=True)
class LoopCommoning:
    """The pass. Bound: each loop is looked at once."""

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values carried from step to step, and a decision for each loop that has any."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        loop = as_loop(eqn)
        found = None if loop is None or loop.length < 2 else find_commoning(loop, context.machine)
        if loop is None or found is None:
            eqns.append(eqn)
            continue
        pays = found.seconds > 0
        named = max((loop.body.eqns[k] for k in found.dead), key=lambda e: e.outvars[0].aval.size, default=eqn)
        what = f"`{named.primitive.name}` of a step is that of the step before, which computed it for the next carry"
        reason = f"saves {1e6 * found.seconds:.1f} us a step, of {loop.length}" if pays else "carrying it costs as much"
        decisions.append(Decision(NAME, what, where(named), pays, reason))
        eqns += commoned(loop, found) if pays else [eqn]
    return jaxpr if len(eqns) == len(jaxpr.eqns) else with_equations(jaxpr, eqns)
