"""What a loop's steps add up is added up before what is linear and the same in every step is done to it: once."""

from functools import partial

from aerogel._jax import Jaxpr

from ..cost import Machine, equation_seconds, nbytes
from ..exactness import Exactness
from ..hoisting.hoist_plan import LEAST_SECONDS, LEAST_SHARE
from ..hoisting.like_terms import LikeTerms, find_like_terms, together
from ..hoisting.linear_sums import LinearSum, find_linear, summed_first
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..record import record
from ..report import Decision

NAME = "loop-linear"


@record
class LoopLinear:
    """The pass. Bound: each loop is looked at once. It runs before `LoopHoist`, which takes sums of products out.

    Attributes:
        before_products: whether the order in which products are taken is still to be chosen. In a step, an outer
            product times a matrix is best taken as a vector times it, and an outer product then: of the two vectors
            that differ from step to step this is not linear any more.
    """

    before_products: bool = False
    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums taken first, and a decision for each."""
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions, self.before_products)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision], early: bool) -> Jaxpr:
    for place in reversed(range(len(jaxpr.eqns))):  # the places of those before stay what they are
        loop = as_loop(jaxpr.eqns[place])
        if loop is None or loop.length < 2:
            continue
        loop = loop if early else _together(loop, context, decisions)
        if loop.eqn is not jaxpr.eqns[place]:
            jaxpr = with_equations(jaxpr, [*jaxpr.eqns[:place], loop.eqn, *jaxpr.eqns[place + 1 :]])
        paying: list[LinearSum] = []
        for one in find_linear(loop, context.machine, early):
            eqn = max((loop.body.eqns[i] for i in one.after), key=partial(equation_seconds, machine=context.machine))
            what = f"`{eqn.primitive.name}` of {loop.length} steps is done once, to the sum of what it is done to"
            saved = f"saves {1e6 * one.seconds_saved:.1f} us"
            if not _pays(loop, one, context.machine):
                reason = f"{saved}: too little to be sure"
                decisions += [] if early else [Decision(NAME, what, where(eqn), False, reason)]
                continue
            paying.append(one)
            reason = f"it is linear and the same in every step; {saved}"
            decisions.append(Decision(NAME, what, where(eqn), True, reason, exactness=Exactness.REASSOCIATES))
        if paying:
            jaxpr = summed_first(loop, paying).apply(jaxpr, place)
    return jaxpr


def paying_sums(loop: Loop, machine: Machine) -> list[LinearSum]:
    """What of a loop's sums is done once, after the loop."""
    return [one for one in find_linear(loop, machine) if _pays(loop, one, machine)]


def _together(loop: Loop, context: Context, decisions: list[Decision]) -> Loop:
    """The loop with terms of its sums that are made alike made once."""
    paying: list[LikeTerms] = []
    for one in find_like_terms(loop, context.machine):
        what = f"`{one.dearest.primitive.name}` of several terms of a sum is done once in a step, to their sum"
        saved = f"saves {1e6 * one.seconds_saved:.1f} us"
        fired = one.seconds_saved >= 2 * LEAST_SECONDS
        reason = f"it is linear and the same for all of them; {saved}" if fired else f"{saved}: too little to be sure"
        exactness = Exactness.REASSOCIATES if fired else Exactness.BITWISE
        decisions.append(Decision(NAME, what, where(one.dearest), fired, reason, exactness=exactness))
        paying += [one] if fired else []
    return Loop(together(loop, paying)) if paying else loop


def _pays(loop: Loop, one: LinearSum, machine: Machine) -> bool:
    """Whether a saving is believed: it is a share of the loop's time where the new sums are larger than the old.

    Of a step's kernels they are further ones, which XLA may share among threads, and each makes again what it reads:
    of a gradient by four parameters of 4,096 equations, whose sums over these left for 1 %, the time was 1.6 times.
    """
    larger = sum(nbytes(v.aval) for v in one.summed) > max(nbytes(term.aval) for term in one.terms)
    share = LEAST_SHARE * equation_seconds(loop.eqn, machine) if larger else 0.0
    return one.seconds_saved >= max(2 * LEAST_SECONDS, share)
