"""Seams: what paddings and rolls read is computed once, and not for each side of a seam (see `seams.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..levels import Around, rewrite_nested
from ..pipeline import Context
from ..program import Program, where
from ..readers.seams import seams, stored
from ..record import record
from ..report import Decision

NAME = "seams"


@record
class Seams:
    """The pass. Bound: what each value is made of is gone through once for each value that seams read. CPUs only."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values stored, and a decision for each."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr, around: Around) -> Jaxpr:
            if any(eqn.primitive.name in ("scan", "while") for eqn in around):
                return jaxpr
            found = seams(jaxpr, context.machine)
            for one in found:
                eqn = jaxpr.eqns[one.place]
                what = f"`{eqn.primitive.name}` is computed once, for {one.sides} sides of seams"
                reason = f"XLA would compute it for each of them; saves {1e6 * one.seconds:.1f} us"
                if not one.seconds:
                    reason = "to store it would take as long"
                decisions.append(Decision(NAME, what, where(eqn), bool(one.seconds), reason))
            places = {one.place for one in found if one.seconds}
            return stored(jaxpr, places) if places else jaxpr

        return rewrite_nested(program, level), decisions
