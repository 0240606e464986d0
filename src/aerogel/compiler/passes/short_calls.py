"""Short calls: a program that is done before another thread has woken runs in the thread that calls it.

JAX's CPU client hands a program over to another thread unless few operations are counted in it, and loops count as one
step (see `counted.py`). Handing over takes 20 to 70 us: longer than a few thousand entries take.
"""

from dataclasses import dataclass
from typing import ClassVar

from aerogel import _jax
from aerogel._jax import ClosedJaxpr

from ..cost import jaxpr_seconds
from ..counted import NOT_SHORT, counted
from ..exactness import Exactness
from ..pipeline import Context
from ..program import Program
from ..report import Decision
from ..short_calls import shortened

NAME = "short-calls"
# More takes about as long in blocks as it takes to hand it over, and the thread that calls would be held up.
MOST_COUNTED = 20_000
LONGEST = 3e-5
MOST_EQUATIONS = 300


@dataclass(frozen=True)
class ShortCalls:
    """The pass. Bound: a stream is grown once along each axis for each equation of at most 300, and cut four times."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with loops over blocks, and one decision; none for what is short already, or long."""
        if not context.outermost:
            return program, []
        jaxpr = program.jaxpr
        if not (_jax.KNOWS_KERNELS and _jax.hands_over()) or len(jaxpr.eqns) > MOST_EQUATIONS or jaxpr.effects:
            return program, []
        count = counted(jaxpr)
        if not NOT_SHORT <= count <= MOST_COUNTED:
            return program, []
        if jaxpr_seconds(jaxpr, context.machine.on_one_core()) > LONGEST:
            return program, []
        found = shortened(jaxpr, context)
        what = "the program runs in the thread that calls it"
        if isinstance(found, str):
            return program, [Decision(NAME, what, "", False, found)]
        reason = f"in {found.steps} steps it takes less time than another thread takes to wake"
        return ClosedJaxpr(found.jaxpr, program.consts), [
            Decision(NAME, what, "", True, reason, exactness=found.exactness)
        ]
