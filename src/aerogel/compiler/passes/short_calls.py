"""Short calls: a program that is done before another thread has woken runs in the thread that calls it.

JAX's CPU client hands a program over to another thread unless few operations are counted in it, and loops count as one
step (see `counted.py`). Handing over takes 20 to 100 us: longer than a few thousand entries take. Work on entries
alone, one kernel however long (see `lane_loops.py`), is made short up to where the threads that it would be shared
among have woken.
"""

import math
from typing import ClassVar

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Jaxpr

from ..cost import jaxpr_seconds
from ..exactness import Exactness
from ..kernels.counted import NOT_SHORT, counted
from ..pipeline import Context
from ..program import Program
from ..record import record
from ..report import Decision
from ..streams.lane_loops import InLanes, in_lanes
from ..streams.short_calls import Shortened, shortened

NAME = "short-calls"
# More takes about as long in blocks as it takes to hand it over, and the thread that calls would be held up.
MOST_COUNTED = 20_000
LONGEST = 3e-5
MOST_EQUATIONS = 300


@record
class ShortCalls:
    """The pass. Bound: a stream is grown once along each axis for each equation of at most 300, and cut four times."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with loops over blocks, and one decision; none for what is short already, or long."""
        jaxpr = program.jaxpr
        if not _may_become_short(jaxpr, context):
            return program, []
        found, reason = _shortened(jaxpr, context)
        if found is None:
            return program, []
        what = "the program runs in the thread that calls it"
        if isinstance(found, str):
            return program, [Decision(NAME, what, "", False, found)]
        return ClosedJaxpr(found.jaxpr, program.consts), [
            Decision(NAME, what, "", True, reason, exactness=found.exactness)
        ]


def becomes_short(jaxpr: Jaxpr, context: Context) -> bool:
    """Whether the pass makes a program short that is as it will be."""
    return _may_become_short(jaxpr, context) and isinstance(_shortened(jaxpr, context)[0], Shortened | InLanes)


def _may_become_short(jaxpr: Jaxpr, context: Context) -> bool:
    hands_over = context.outermost and context.platform == "cpu" and _jax.KNOWS_KERNELS and _jax.hands_over()
    return hands_over and len(jaxpr.eqns) <= MOST_EQUATIONS and not jaxpr.effects


def _shortened(jaxpr: Jaxpr, context: Context) -> tuple[Shortened | InLanes | str | None, str]:
    """The program that is short, why it is none, or None where it is left without a word; and why it is made."""
    count, machine = counted(jaxpr), context.machine
    if count < NOT_SHORT or not math.isfinite(count):
        return None, ""
    seconds = jaxpr_seconds(jaxpr, machine.on_one_core())
    found = shortened(jaxpr, context) if count <= MOST_COUNTED and seconds <= LONGEST else None
    if isinstance(found, Shortened):
        # Blocks along an inner axis turn arrays around, of which the program may read a row.
        longer = jaxpr_seconds(found.jaxpr, machine.on_one_core()) - seconds
        if longer > machine.seconds_to_hand_over:
            return f"its loops would take {1e6 * longer:.0f} us longer than it takes", ""
        return found, f"in {found.steps} steps it takes less time than another thread takes to wake"
    longest = machine.seconds_to_hand_over + (machine.seconds_to_share if _jax.usable_cores() > 1 else 0.0)
    lanes = in_lanes(jaxpr, context) if seconds <= longest else None
    if isinstance(lanes, InLanes):
        reason = f"in {lanes.steps:,} steps of {lanes.lanes} entries it takes less time than other threads take to wake"
        return lanes, reason
    return found or lanes, ""
