"""Square sums: weighted sums over the rows of square arrays are no products of matrices (see `square_sums.py`)."""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where
from ..readers.square_sums import square_sums, with_zero
from ..report import Decision

NAME = "square-sums"


@dataclass(frozen=True)
class SquareSums:
    """The pass. Bound: each sum is looked at once. CPUs only. It runs behind those that decide what a sum reads."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with a hidden zero in each such sum, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []

        def rewritten(jaxpr: Jaxpr) -> Jaxpr:
            level = Level(jaxpr)
            found = list(square_sums(level))
            for place in found:
                side = level.eqns[place].invars[0].aval.shape[-1]
                what = f"-0.0 is added to what a weighted sum of {side} rows of {side} adds up"
                reason = "XLA's library would take it for a product of matrices"
                decisions.append(Decision(NAME, what, where(level.eqns[place]), True, reason, exactness="reassociates"))
            return apply_edits(jaxpr, [with_zero(level, place) for place in found])[0] if found else jaxpr

        return rewrite_levels(program, rewritten), decisions
