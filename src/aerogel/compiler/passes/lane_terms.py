"""Lane terms: what many lanes give to what they share is summed up in one product, masks and all."""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..networks.terms_of_lanes import terms_of_lanes
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "lane-terms"


@record
class LaneTerms:
    """The pass. Bound: from each sum upwards, 16 products at most. Contraction does the same to one product alone."""

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums as products over the lanes, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    level, edits = Level(jaxpr), list[Edit]()
    for place, eqn in enumerate(jaxpr.eqns):
        found = terms_of_lanes(level, place) if eqn.primitive.name == "reduce_sum" else None
        if found is not None:
            edits.append(found.edit)
            what = f"a sum over lanes of {found.terms} {'masked ' * found.masked}products is made of products over them"
            reason = f"{found.entries} entries of lanes need not be made"
            exactness = Exactness.REASSOCIATES
            decisions.append(Decision(NAME, what, where(eqn), True, reason, exactness=exactness))
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr
