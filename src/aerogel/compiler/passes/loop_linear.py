"""What a loop's steps add up is added up before what is linear and the same in every step is done to it: once."""

from dataclasses import dataclass

from aerogel._jax import Jaxpr

from ..cost import equation_seconds
from ..exactness import Exactness
from ..hoisting.hoist_plan import LEAST_SECONDS
from ..hoisting.linear_sums import LinearSum, find_linear, summed_first
from ..levels import rewrite_levels
from ..loop import as_loop
from ..pipeline import Context
from ..program import Program, where
from ..report import Decision

NAME = "loop-linear"


@dataclass(frozen=True)
class LoopLinear:
    """The pass. Bound: each loop is looked at once. It runs before `LoopHoist`, which takes sums of products out."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums taken first, and a decision for each."""
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    for place in reversed(range(len(jaxpr.eqns))):  # the places of those before stay what they are
        loop = as_loop(jaxpr.eqns[place])
        if loop is None or loop.length < 2:
            continue
        paying: list[LinearSum] = []
        for one in find_linear(loop, context.machine):
            eqn = max((loop.body.eqns[i] for i in one.after), key=lambda e: equation_seconds(e, context.machine))
            what = f"`{eqn.primitive.name}` of {loop.length} steps is done once, to the sum of what it is done to"
            saved = f"saves {1e6 * one.seconds_saved:.1f} us"
            if one.seconds_saved < 2 * LEAST_SECONDS:
                decisions.append(Decision(NAME, what, where(eqn), False, f"{saved}: too little to be sure"))
                continue
            paying.append(one)
            reason = f"it is linear and the same in every step; {saved}"
            decisions.append(Decision(NAME, what, where(eqn), True, reason, exactness=Exactness.REASSOCIATES))
        if paying:
            jaxpr = summed_first(loop, paying).apply(jaxpr, place)
    return jaxpr
