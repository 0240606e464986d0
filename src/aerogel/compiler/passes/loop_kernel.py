"""Loop kernel: a loop whose steps are many small kernels is compiled as one (see `one_kernel.py`)."""

from collections.abc import Sequence
from typing import ClassVar

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn

from ..cost.seconds import moves_few
from ..exactness import Exactness
from ..kernels.one_kernel import (
    FEWEST_STEPS,
    TOO_MUCH,
    Price,
    are_too_much_together,
    as_one_kernel,
    is_too_much,
    price,
    refusal,
    reorders_sums,
    step_kernels,
)
from ..kernels.steps_at_once import steps_at_once
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, count_equations, inner_jaxprs, where, with_equations
from ..record import record
from ..report import Decision

NAME = "loop-kernel"
# Of a loop that is one kernel anyway, 4 steps written one after the other took 0.6 to 0.9 of its time, but 1.3 where a
# step has more operations than this and makes more values than that: the gradient of a Runge-Kutta step (55 and 58
# operations; 8 and 14 values).
MANY_OPERATIONS, MANY_VALUES = 40, 6


@record
class LoopKernel:
    """The pass. Bound: each loop is looked at once. It runs after all rules: what it writes is opaque to them."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops as calls, and a decision for each."""
        if not _jax.KNOWS_KERNELS:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    eqns = [_equation(eqn, jaxpr, context, decisions) for eqn in jaxpr.eqns]
    same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else with_equations(jaxpr, eqns)


def _equation(eqn: JaxprEqn, level: Jaxpr, context: Context, decisions: list[Decision]) -> JaxprEqn:
    is_loop = eqn.primitive.name in ("scan", "while")
    if not is_loop or eqn.params.get("length", FEWEST_STEPS) < FEWEST_STEPS:
        return eqn
    what = f"the steps of `{eqn.primitive.name}` are one kernel"
    if is_too_much(eqn):
        decisions.append(Decision(NAME, what, where(eqn), False, TOO_MUCH))
        return eqn
    if _is_one_already(eqn, context):
        decisions.append(Decision(NAME, what, where(eqn), False, "XLA makes one of them by itself"))
        return eqn
    found = price(eqn, context.machine)
    if found.kernels <= found.inside or not any(not isinstance(v, _jax.DropVar) for v in eqn.outvars):
        return eqn
    exactness = Exactness.REASSOCIATES if reorders_sums(eqn) else Exactness.NO_WORSE
    reason = refusal(eqn)
    if reason is None and exactness not in context.allowed:
        reason = 'its sums are added up in another order: numerics="fast" allows that'
    decisions.append(Decision(NAME, what, where(eqn), reason is None, reason or _said(found, eqn), exactness=exactness))
    return as_one_kernel(eqn, level) if reason is None else eqn


def becomes_one(eqn: JaxprEqn, context: Context) -> bool:
    """Whether the pass makes one kernel of a loop that is as it will be."""
    if not _jax.KNOWS_KERNELS or context.platform != "cpu" or is_too_much(eqn) or _is_one_already(eqn, context):
        return False
    found = price(eqn, context.machine)
    exactness = Exactness.REASSOCIATES if reorders_sums(eqn) else Exactness.NO_WORSE
    return found.kernels > found.inside and exactness in context.allowed and refusal(eqn) is None


def is_one(eqn: JaxprEqn, context: Context) -> bool:
    """Whether XLA makes one kernel of a loop that is as it will be, by itself or since the pass asks for it."""
    by_itself = context.platform == "cpu" and eqn.primitive.name == "scan" and moves_few(eqn, context.machine)
    return by_itself or becomes_one(eqn, context)


def lose_their_kernels(loops: Sequence[JaxprEqn], context: Context) -> bool:
    """Whether loops that are one kernel each would be none as one loop.

    What a cascade of filters stacks is little; four of them in one loop, backwards, started 30 kernels in each step
    instead of 8 in all (5.7 of plain JAX's time).
    """
    return are_too_much_together(loops) and all(is_one(one, context) for one in loops)


def _is_one_already(eqn: JaxprEqn, context: Context) -> bool:
    """Whether XLA makes one kernel of a loop, and several steps of it at once would be no faster."""
    if eqn.primitive.name != "scan" or not moves_few(eqn, context.machine):
        return False
    if steps_at_once(eqn) == 1:
        return True
    return count_equations(inner_jaxprs(eqn)[0]) > MANY_OPERATIONS and len(step_kernels(eqn)) > MANY_VALUES


def _said(found: Price, eqn: JaxprEqn) -> str:
    starts = f"starting and sharing them takes {1e6 * found.kernels:.1f} us a step"
    steps = steps_at_once(eqn)
    several = "" if steps == 1 else f"; {steps} steps stand one after the other"
    return f"{starts}, one core {1e6 * found.inside:.1f} more{several}"
