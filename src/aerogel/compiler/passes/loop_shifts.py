"""Loop shifts: what a step rolls is written once with its ends, and rolls are slices of that (see `shifts.py`).

What a step pads with entries of its own is written once as it is (`ghosts.py`), and so is what sums of paddings read
(`offsets.py`).
"""

from typing import ClassVar

from aerogel._jax import Jaxpr, Var, scan_counts

from ..exactness import Exactness
from ..levels import Around, rewrite_nested
from ..pipeline import Context
from ..program import Program, depends_on, where
from ..readers.seams import stored
from ..record import record
from ..report import Decision
from ..rolled.ghosts import ghosts
from ..rolled.offsets import Offsets, as_slices, offsets, summed_in_paddings
from ..rolled.shifts import Shifts, shifted, shifts

NAME = "loop-shifts"


@record
class LoopShifts:
    """The pass. Bound: each equation of a loop's body is looked at once. CPUs only."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.NO_WORSE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values written once a step, and a decision for each."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr, around: Around) -> Jaxpr:
            if not any(eqn.primitive.name in ("scan", "while") for eqn in around):
                return jaxpr
            varies = _varies(jaxpr, around)
            once = [*ghosts(jaxpr, context.machine), *summed_in_paddings(jaxpr, context.machine)]
            once = [one for one in once if jaxpr.eqns[one.place].outvars[0] in varies]
            decisions.extend(_decision(jaxpr, one.place, one.what, one.seconds) for one in once)
            places = {one.place for one in once if one.seconds}
            same = {*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)} - varies
            jaxpr = stored(jaxpr, places) if places else jaxpr
            padded = [one for one in offsets(jaxpr, context.machine) if one.base not in same]
            decisions.extend(_sliced(jaxpr, one) for one in padded)
            sliced = [one for one in padded if one.seconds]
            jaxpr = as_slices(jaxpr, sliced) if sliced else jaxpr
            found = [one for one in shifts(jaxpr, context.machine) if one.base not in same]
            decisions.extend(_rolled(jaxpr, one) for one in found)
            taken = [one for one in found if one.seconds]
            return shifted(jaxpr, taken, _inputs(jaxpr, around)) if taken else jaxpr

        return rewrite_nested(program, level), decisions


def _varies(jaxpr: Jaxpr, around: Around) -> set[Var]:
    """What differs from step to step. XLA rolls the rest once, before the loop."""
    params = around[-1].params
    constants = 0
    if around[-1].primitive.name == "scan":
        constants = scan_counts(params)[0]
    elif around[-1].primitive.name == "while":
        constants = params["body_nconsts" if jaxpr is params["body_jaxpr"].jaxpr else "cond_nconsts"]
    seeds = jaxpr.invars[constants:]
    return {*seeds, *depends_on(jaxpr, seeds)}


def _inputs(jaxpr: Jaxpr, around: Around) -> set[Var]:
    """What each step of a scan is given."""
    params = around[-1].params
    return {*jaxpr.invars[sum(scan_counts(params)) :]} if around[-1].primitive.name == "scan" else set()


def _decision(jaxpr: Jaxpr, place: int, what: str, seconds: float, exact: Exactness = Exactness.BITWISE) -> Decision:
    reason = f"what reads it is vector code then; saves {1e6 * seconds:.1f} us a step"
    reason = reason if seconds else "to write it would take as long"
    return Decision(NAME, what, where(jaxpr.eqns[place]), bool(seconds), reason, exactness=exact)


def _sliced(jaxpr: Jaxpr, one: Offsets) -> Decision:
    what = f"{len(one.places)} paddings of a value are slices of one larger padding"
    return _decision(jaxpr, one.places[0], what, one.seconds)


def _rolled(jaxpr: Jaxpr, one: Shifts) -> Decision:
    what = f"{len(one.rolls)} rolls of a step are slices of one larger value"
    exact = Exactness.NO_WORSE if any(roll.adds for roll in one.rolls) else Exactness.BITWISE
    return _decision(jaxpr, one.rolls[0].place, what, one.seconds, exact)
