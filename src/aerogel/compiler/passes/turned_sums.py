"""Turned sums: loops add up products the way round in which less has to be turned (see `turned_sums.py`)."""

from typing import ClassVar

from aerogel._jax import JaxprEqn

from ..exactness import Exactness
from ..hoisting.turned_sums import turned, turned_sums
from ..levels import rewrite_loops
from ..loop import Loop
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "turned-sums"
WHAT = "the sum of products over the steps is made as its transpose"


@record
class TurnedSums:
    """The pass. Bound: each loop is looked at once. CPUs only: a product in another order is another call there."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums turned, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_loops(program, lambda loop, _: _loop(loop, decisions)), decisions


def _loop(loop: Loop, decisions: list[Decision]) -> list[JaxprEqn] | None:
    found = turned_sums(loop)
    for one in found:
        reason = one.refusal or f"{1e6 * one.seconds:.1f} us a step are spent on turning its left operand"
        decisions.append(Decision(NAME, WHAT, where(one.product), one.refusal is None, reason))
    taken = [one for one in found if one.refusal is None]
    return turned(loop, taken) if taken else None
