"""Turned constants: what every step reads against its rows is turned before the loop (see `turned_constants.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn

from ..cost import nbytes
from ..exactness import Exactness
from ..hoisting.turned_constants import turned_constants, with_turned
from ..levels import rewrite_levels, rewrite_loops
from ..loop import Loop
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "turned-constants"
WHAT = "a constant of the loop is read along its rows, and turned before it"


@record
class TurnedConstants:
    """The pass. Bound: each loop is looked at once. CPUs only: a product in another order is another call there."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such constants turned, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_loops(program, lambda loop, level: _loop(loop, level, decisions))
        return (program if new is program else rewrite_levels(new, drop_dead)), decisions


def _loop(loop: Loop, level: Jaxpr, decisions: list[Decision]) -> list[JaxprEqn] | None:
    found = turned_constants(loop, level)
    for one in found:
        reason = one.refusal or f"the steps turn it again and again, for {1e6 * one.seconds:.0f} us altogether"
        size = nbytes(one.constant.aval) if one.refusal is None and one.made is None else 0
        exactness = Exactness.REASSOCIATES if one.refusal is None else Exactness.BITWISE
        fired = one.refusal is None
        decisions.append(Decision(NAME, WHAT, where(one.products[0]), fired, reason, 0, 0, -size, exactness))
    taken = [one for one in found if one.refusal is None]
    return with_turned(loop, taken) if taken else None
