"""Loop once: what a step makes for several arrays is computed once a step (see `once.py`)."""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn

from ..exactness import Exactness
from ..levels import rewrite_levels
from ..loop import as_loop
from ..once import Repeated, computed_once, repeated
from ..pipeline import Context
from ..program import Program, producers, where, with_equations
from ..report import Decision

NAME = "loop-once"


@dataclass(frozen=True)
class LoopOnce:
    """The pass. Bound: each loop is looked at once. It runs last: the others do not see through what it writes."""

    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values computed once, and a decision for each."""
        if context.platform != "cpu" or context.before_differentiation:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        loop = as_loop(eqn)
        found = [] if loop is None else repeated(loop, context.machine, context.over_devices)
        if loop is None or not found:
            eqns.append(eqn)
            continue
        eqns += computed_once(loop, [one.value for one in found])
        makers = producers(loop.body)
        decisions += [_decision(loop.body.eqns[makers[one.value]], one, loop.length) for one in found]
    return jaxpr if len(eqns) == len(jaxpr.eqns) else with_equations(jaxpr, eqns)


def _decision(eqn: JaxprEqn, one: Repeated, steps: int) -> Decision:
    what = f"`{eqn.primitive.name}` of a step is computed once, for {one.arrays} arrays"
    reason = f"XLA would compute it for each of them; saves {1e6 * one.seconds:.1f} us a step, of {steps}"
    return Decision(NAME, what, where(eqn), True, reason)
