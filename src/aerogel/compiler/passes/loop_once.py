"""Loop once: what a step makes for several arrays is computed once a step (see `once.py`)."""

from typing import ClassVar

from aerogel._jax import JaxprEqn

from ..exactness import Exactness
from ..fusion.kept_once import computed_once
from ..fusion.once import Repeated, repeated
from ..levels import rewrite_loops
from ..loop import Loop
from ..pipeline import Context
from ..program import Program, producers, where
from ..record import record
from ..report import Decision

NAME = "loop-once"


@record
class LoopOnce:
    """The pass. Bound: each loop is looked at once. It runs last: the others do not see through what it writes."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values computed once, and a decision for each."""
        decisions: list[Decision] = []
        return rewrite_loops(program, lambda loop, _: _loop(loop, context, decisions)), decisions


def _loop(loop: Loop, context: Context, decisions: list[Decision]) -> list[JaxprEqn] | None:
    found = repeated(loop, context.machine, context.over_devices)
    if not found:
        return None
    makers = producers(loop.body)
    decisions += [_decision(loop.body.eqns[makers[one.value]], one, loop.length) for one in found]
    return computed_once(loop, [one.value for one in found])


def _decision(eqn: JaxprEqn, one: Repeated, steps: int) -> Decision:
    what = f"`{eqn.primitive.name}` of a step is computed once, for {one.arrays} arrays"
    reason = f"XLA would compute it for each of them; saves {1e6 * one.seconds:.1f} us a step, of {steps}"
    return Decision(NAME, what, where(eqn), True, reason)
