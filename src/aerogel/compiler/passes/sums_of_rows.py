"""Sums of rows: what XLA adds up entry by entry along an axis is added up row by row (see `sums_of_rows.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where
from ..readers.sums_of_rows import SumOfRows, in_rows, sums_of_rows
from ..record import record
from ..report import Decision

NAME = "sums-of-rows"


@record
class SumsOfRows:
    """The pass. Bound: each reduction is looked at once, with at most 12 operations before it. CPUs only."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such reductions in loops, and a decision for each."""
        decisions: list[Decision] = []

        def rewritten(jaxpr: Jaxpr) -> Jaxpr:
            level = Level(jaxpr)
            found = [one for one in sums_of_rows(level) if _exactness(level, one) in context.allowed]
            for one in found:
                at, exactness = where(level.eqns[one.place]), _exactness(level, one)
                decisions.append(Decision(NAME, _what(level, one), at, True, _reason(one), exactness=exactness))
            return apply_edits(jaxpr, [in_rows(level, one) for one in found])[0] if found else jaxpr

        return rewrite_levels(program, rewritten), decisions


def _exactness(level: Level, one: SumOfRows) -> Exactness:
    """Extrema are the same in any order, but for the sign of a zero."""
    is_sum = level.eqns[one.place].primitive.name == "reduce_sum"
    return Exactness.REASSOCIATES if is_sum else Exactness.NO_WORSE


def _what(level: Level, one: SumOfRows) -> str:
    name = level.eqns[one.place].primitive.name
    kind = {"reduce_max": "a maximum", "reduce_min": "a minimum"}.get(
        name, "a sum" if one.is_wide else "a weighted sum"
    )
    return f"{kind} of {one.rows} rows is {'added up' if name == 'reduce_sum' else 'taken'} row by row"


def _reason(one: SumOfRows) -> str:
    read = "its rows" if one.is_wide else "its factors"
    return f"XLA would read {read} entry by entry"
