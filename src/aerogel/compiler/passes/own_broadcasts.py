"""Own broadcasts: what several sums repeat along their axes, each repeats for itself (see `own_broadcasts.py`).

So does what reads parts of bfloat16 numbers that a sum reads make float32 of them for itself (`own_conversions.py`).
"""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..level import Level
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where
from ..readers.own_broadcasts import ELSEWHERE, Shared, Sums, set_apart
from ..readers.own_conversions import Picked, picked_apart, picked_of_summed
from ..record import record
from ..report import Decision

NAME = "own-broadcasts"


@record
class OwnBroadcasts:
    """The pass. Bound: each equation is looked at a few times. It runs last: others do not see through its barriers."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values set apart, and a decision for each."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            sums = Sums(Level(jaxpr), context.machine)
            chosen = []
            for one in sums.shared:
                fires = one.seconds > 0 and _exactness(one) in context.allowed
                decisions.append(_decision(sums.level, one, fires))
                if fires:
                    chosen.append(one)
            jaxpr = set_apart(sums, chosen) if chosen else jaxpr
            picked = picked_of_summed(Level(jaxpr))
            decisions.extend(_decisions_of_parts(jaxpr, picked))
            return picked_apart(jaxpr, picked) if picked else jaxpr

        return rewrite_levels(program, level), decisions


def _exactness(one: Shared) -> Exactness:
    return Exactness.REASSOCIATES if one.divides else Exactness.NO_WORSE


def _decision(level: Level, one: Shared, fires: bool) -> Decision:
    eqn = level.eqns[one.place]
    sums = len(one.homes - {ELSEWHERE})
    others = " and others" if ELSEWHERE in one.homes else ""
    what = f"what {'a sum' if sums == 1 else f'{sums} sums'}{others} repeat, each has for itself"
    reason = f"XLA would write it out, {one.written / 1e6:.1f} MB; saves up to {1e6 * one.seconds:.0f} us"
    if not one.seconds:
        reason = "what XLA writes for it is small"
    elif not fires:
        reason = "one divides by it, for which XLA would then multiply by a reciprocal"
    return Decision(NAME, what, where(eqn), fires, reason, exactness=_exactness(one))


def _decisions_of_parts(jaxpr: Jaxpr, picked: list[Picked]) -> list[Decision]:
    reason = "XLA would write all of it as float32 for both, {:.1f} MB"
    found: list[Decision] = []
    for one in picked:
        eqn = jaxpr.eqns[min(one.places)]
        what = f"what `{eqn.primitive.name}` reads of what a sum reads is converted by itself"
        why, saved = reason.format(one.written / 1e6), 2 * one.written
        found.append(Decision(NAME, what, where(eqn), True, why, 0, saved, exactness=Exactness.NO_WORSE))
    return found
