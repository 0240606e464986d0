"""Loop rows: a loop's carries and outputs with short rows, or unlike halves, are long rows (see `loop_rows.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn

from ..exactness import Exactness
from ..levels import rewrite_levels
from ..loops.loop_rows import Rows, in_long_rows
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..record import record
from ..report import Decision

NAME = "loop-rows"


@record
class LoopRows:
    """The pass. Bound: each loop is looked at once for each shape that it hands on. CPUs only, one device."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops on long rows, and a decision for each shape in each."""
        with_sums = Exactness.REASSOCIATES in context.allowed
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            eqns: list[JaxprEqn] = []
            for eqn in jaxpr.eqns:
                new, found = in_long_rows(eqn, with_sums)
                eqns += new
                decisions.extend(_decision(eqn, rows) for rows in found)
            changed = any(new is not old for new, old in zip(eqns, jaxpr.eqns, strict=False))
            return with_equations(jaxpr, eqns) if changed or len(eqns) != len(jaxpr.eqns) else jaxpr

        return rewrite_levels(program, level), decisions


def _decision(eqn: JaxprEqn, rows: Rows) -> Decision:
    shape = " x ".join(map(str, rows.shape))
    what = f"arrays of {shape} entries are {rows.rows[0]} rows of {rows.rows[1]} in all steps"
    exactness = Exactness.REASSOCIATES if rows.reorders else Exactness.BITWISE
    return Decision(NAME, what, where(eqn), rows.refusal is None, rows.refusal or rows.why, exactness=exactness)
