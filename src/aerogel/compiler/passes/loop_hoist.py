"""Loop hoisting: what a step computes without the carry runs outside the loop, for all steps at once, where that pays.

The opposite of loop fusion. Products of few rows become one of many, random numbers are drawn in one go; what XLA would
leave in the loop though it never changes is computed once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from aerogel._jax import DropVar, Jaxpr, Var

from ..exactness import Exactness
from ..hoist import Outside, move_out
from ..hoist_plan import Plan, Terms, plan_after, plan_before, plan_once
from ..hoistable import SAME_BITS, is_heavy
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..pipeline import Context
from ..program import Program, where
from ..report import Decision

NAME = "loop-hoist"


@dataclass(frozen=True)
class LoopHoist:
    """The pass. Bound: each loop is looked at once."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its loops' carry-independent work outside, and a decision for each heavy equation."""
        decisions: list[Decision] = []
        strict = Exactness.REASSOCIATES not in context.allowed
        terms = Terms(context.machine, strict, context.before_differentiation)
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, terms, decisions)), decisions


def _level(jaxpr: Jaxpr, terms: Terms, decisions: list[Decision]) -> Jaxpr:
    done: set[Var] = set()
    while True:
        index = _next_loop(jaxpr, done)
        if index is None:
            return jaxpr
        outs = set(jaxpr.eqns[index].outvars)
        for step in (_once, _before, _after):
            index = _index_of(jaxpr, outs)
            loop = None if index is None else as_loop(jaxpr.eqns[index])
            if loop is None or index is None:
                break
            outs.update(loop.eqn.outvars)
            outside = step(loop, terms, decisions)
            if outside != Outside():
                jaxpr = move_out(loop, outside).apply(jaxpr, index)
        done |= outs


def _once(loop: Loop, terms: Terms, decisions: list[Decision]) -> Outside:
    return _decide(loop, plan_once(loop, terms), "is computed once, before the loop", decisions)


def _before(loop: Loop, terms: Terms, decisions: list[Decision]) -> Outside:
    return _decide(loop, plan_before(loop, terms), "runs before the loop, for all steps at once", decisions)


def _after(loop: Loop, terms: Terms, decisions: list[Decision]) -> Outside:
    return _decide(loop, plan_after(loop, terms), "runs after the loop, for all steps at once", decisions)


def _decide(loop: Loop, plan: Plan, how: str, decisions: list[Decision]) -> Outside:
    eqns, moved = loop.body.eqns, plan.outside
    added = plan.bytes_added
    for i in sorted(moved.once | moved.before | moved.after):
        if not is_heavy(eqns[i]):
            continue
        name = eqns[i].primitive.name
        exactness = Exactness.BITWISE if moved.once or name in SAME_BITS else Exactness.REASSOCIATES
        reason = f"it needs nothing that the other steps of {loop.length} compute"
        decisions.append(
            Decision(NAME, f"`{name}` {how}", where(eqns[i]), True, reason, 0, 0, -added, exactness)
        )
        added = 0
    for i, reason in sorted(plan.refusals.items()):
        decisions.append(
            Decision(NAME, f"`{eqns[i].primitive.name}` outside the loop", where(eqns[i]), False, reason)
        )
    return moved


def _next_loop(jaxpr: Jaxpr, done: set[Var]) -> int | None:
    for index, eqn in enumerate(jaxpr.eqns):
        outs = [v for v in eqn.outvars if not isinstance(v, DropVar)]
        if eqn.primitive.name == "scan" and not done.issuperset(outs):
            loop = as_loop(eqn)
            if loop is not None and loop.length > 1:
                return index
    return None


def _index_of(jaxpr: Jaxpr, outs: Iterable[Var]) -> int | None:
    """The loop that makes one of `outs`."""
    known = set(outs)
    for index, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "scan" and any(v in known for v in eqn.outvars):
            return index
    return None
