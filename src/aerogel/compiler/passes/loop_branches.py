"""What the branches in a loop's steps need not do step by step: work on constants, and what they add to its sums.

In the derivative of a loop with a `cond`, JAX stores for each step what a branch computed of constants, and its
backward loop adds a whole matrix to a weight's gradient in each, zeros where the other branch was taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..hoisting.branch_pairs import with_constants_of_branches
from ..hoisting.branch_terms import opened
from ..hoisting.hoist import Replacement
from ..hoisting.lift import lift
from ..hoisting.linear_sums import Body
from ..hoisting.repeated import with_repeated_outputs, with_whole_inputs
from ..level import Level
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from .loop_linear import paying_sums

NAME = "loop-branches"


@record
class LoopBranches:
    """The pass. Bound: each loop with branches is looked at once. `LoopLinear` and `LoopHoist` take what it frees."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such work in front of its loops or behind the branches, and a decision for each equation."""
        walk = _Walk(context, [])
        return rewrite_levels(program, walk.level), walk.decisions


@dataclass
class _Walk:
    """One walk over the levels of a program."""

    context: Context
    decisions: list[Decision]

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        """A level with less in its branches; the same object if nothing leaves."""
        done: set[Var] = set()
        while (place := _next_loop(jaxpr, done)) is not None:
            for step in (self._whole, self._paired, self._lifted, self._repeated, self._opened):
                new = step(jaxpr, Loop(jaxpr.eqns[place]))
                if new is None:
                    continue
                outs = {v for eqn in new.eqns if eqn.primitive.name == "scan" for v in eqn.outvars}
                jaxpr = new.apply(jaxpr, place)
                place = next((i for i in reversed(_loops(jaxpr)) if not outs.isdisjoint(jaxpr.eqns[i].outvars)), None)
                if place is None:
                    break
            else:
                done.update(jaxpr.eqns[place].outvars)
        return jaxpr

    def _lifted(self, _: Jaxpr, loop: Loop) -> Replacement | None:
        """Work on constants leaves the branches."""
        found = lift(loop, self.context.machine)
        if found is None:
            return None
        self._note(found[1], "is computed before the loop", "it reads constants of the loop only", Exactness.BITWISE)
        return found[0]

    def _whole(self, jaxpr: Jaxpr, loop: Loop) -> Replacement | None:
        """Inputs that repeat one value are read whole."""
        return self._said(with_whole_inputs(Level(jaxpr), loop), loop, "an input of the loop is read whole")

    def _repeated(self, _: Jaxpr, loop: Loop) -> Replacement | None:
        """Outputs that are the same in all steps are repeated."""
        return self._said(with_repeated_outputs(loop), loop, "an output of the loop is repeated")

    def _said(self, new: Replacement | None, loop: Loop, what: str) -> Replacement | None:
        if new is not None:
            reason, exactness = "it is the same in all steps", Exactness.BITWISE
            self.decisions.append(Decision(NAME, what, where(loop.eqn), True, reason, exactness=exactness))
        return new

    def _paired(self, jaxpr: Jaxpr, loop: Loop) -> Replacement | None:
        """Branches read constants in place of what another loop stored."""
        found = with_constants_of_branches(Level(jaxpr), loop)
        if found is None:
            return None
        for eqn in found[1]:
            what, reason = "branches read constants", "what another loop stored for them is one of its constants"
            self.decisions.append(Decision(NAME, what, where(eqn), True, reason, exactness=Exactness.BITWISE))
        return found[0]

    def _opened(self, _: Jaxpr, loop: Loop) -> Replacement | None:
        """What branches add to sums is made behind them."""
        if self.context.before_differentiation or Exactness.REASSOCIATES not in self.context.allowed:
            return None
        machine = self.context.machine
        found = opened(loop, Body(loop, machine), lambda new: paying_sums(new, machine))
        if found is None:
            return None
        self._note(found[1], "is done behind the branches", "its sum alone is wanted", Exactness.REASSOCIATES)
        return found[0]

    def _note(self, eqns: Sequence[JaxprEqn], how: str, reason: str, exactness: Exactness) -> None:
        for eqn in eqns:
            what = f"`{eqn.primitive.name}` in a branch {how}"
            self.decisions.append(Decision(NAME, what, where(eqn), True, reason, exactness=exactness))


def _loops(jaxpr: Jaxpr) -> list[int]:
    return [i for i, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name == "scan"]


def _next_loop(jaxpr: Jaxpr, done: set[Var]) -> int | None:
    """The next loop of several steps with a branch in them that was not looked at."""
    for place in _loops(jaxpr):
        outs = [v for v in jaxpr.eqns[place].outvars if not isinstance(v, DropVar)]
        if done.issuperset(outs):
            continue
        loop = as_loop(jaxpr.eqns[place])
        if loop is not None and loop.length > 1 and any(one.primitive.name == "cond" for one in loop.body.eqns):
            return place
    return None
