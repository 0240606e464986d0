"""Weighted sums: sums of products that XLA reads entry by entry are added up row by row (see `weighted_sums.py`)."""

from dataclasses import dataclass

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where
from ..report import Decision
from ..weighted_sums import in_rows, weighted_sums

NAME = "weighted-sums"


@dataclass(frozen=True)
class WeightedSums:
    """The pass. Bound: each sum is looked at once, with at most 12 operations before it. CPUs only."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums in loops, and a decision for each."""
        if context.platform != "cpu" or context.before_differentiation or self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []

        def rewritten(jaxpr: Jaxpr) -> Jaxpr:
            level = Level(jaxpr)
            found = list(weighted_sums(level))
            for one in found:
                what = f"a weighted sum of {one.rows} rows is added up row by row"
                reason = "XLA would read its factors entry by entry"
                at = where(level.eqns[one.place])
                decisions.append(Decision(NAME, what, at, True, reason, exactness=self.exactness))
            return apply_edits(jaxpr, [in_rows(level, one) for one in found])[0] if found else jaxpr

        return rewrite_levels(program, rewritten), decisions
