"""Short rows: what is done to the entries of arrays with short rows is done to long rows (see `short_rows.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..levels import Around, rewrite_nested
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from ..short_axes.short_rows import Rows, lengthened

NAME = "short-rows"


@record
class ShortRows:
    """The pass. Bound: every equation is looked at once. CPUs only; it runs last, as nothing sees into its branches.

    The rules of what a processor compiles well have run, too: of an odd number of numbers none saw that they are looked
    up in a table (`jnp.digitize`).
    """

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such work in branches of its own, and a decision for each."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr, around: Around) -> Jaxpr:
            if jaxpr.effects:
                return jaxpr
            in_loop = any(eqn.primitive.name in ("scan", "while") for eqn in around)
            sums = Exactness.REASSOCIATES in context.allowed
            new, found = lengthened(jaxpr, sums, in_loop, context.machine.masks_vectors)
            decisions.extend(map(_decision, found))
            return new

        return rewrite_nested(program, level), decisions


def _decision(rows: Rows) -> Decision:
    exactness = Exactness.BITWISE
    if any(eqn.primitive.name == "reduce_sum" for eqn in rows.eqns):
        exactness = Exactness.REASSOCIATES
    reason = rows.refusal or rows.reason
    return Decision(NAME, rows.what, where(rows.eqns[0]), rows.refusal is None, reason, exactness=exactness)
