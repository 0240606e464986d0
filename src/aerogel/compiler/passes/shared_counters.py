"""Shared counters: lanes of a loop that stop one by one have counted the same (see `masks/shared_counters.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..level import Level
from ..levels import rewrite_levels
from ..masks.shared_counters import with_shared_counters
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..record import record
from ..report import Decision

NAME = "shared-counters"
WHAT = "a loop of many lanes counts its steps once"


@record
class SharedCounters:
    """The pass. Bound: a loop that has lost its counters has one condition for all lanes: there is no next time."""

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such counters as one number each, and a decision for each loop."""
        decisions: list[Decision] = []
        new = rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions))
        return (program if new is program else rewrite_levels(new, drop_dead)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    level = Level(jaxpr)
    eqns = list(jaxpr.eqns)
    for place, eqn in enumerate(jaxpr.eqns):
        loop = with_shared_counters(level, eqn)
        if loop is not None:
            eqns[place] = loop
            lanes = eqn.params["cond_jaxpr"].out_avals[0].size
            reason = f"all of the {lanes} lanes that go on have counted the same"
            decisions.append(Decision(NAME, WHAT, where(eqn), True, reason))
    return jaxpr if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)) else with_equations(jaxpr, eqns)
