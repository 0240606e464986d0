"""Early picks: entries that indices pick are computed alone, of entries that are picked (see `early_picks.py`).

Their derivative puts entries into zeros, one in each row: sums of such rows are known (`one_hot_sums.py`), and what is
linear in them is done for the entries alone (`late_entries.py`).
"""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..excerpts.early_picks import picked_early
from ..excerpts.late_entries import late_entries
from ..excerpts.one_hot_sums import scattered_sums
from ..known.records import Facts
from ..known.structure import structure
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import normalize
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "early-picks"
MOST_ROUNDS = 2  # a scatter whose indices count its rows first becomes one that does not need them


@record
class EarlyPicks:
    """The pass. Bound: each gather is looked at twice, with at most 12 equations before it."""

    early: ClassVar = True  # the gradient is then of the entries, too

    name: str = NAME
    exactness: Exactness = Exactness.NO_WORSE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such entries computed alone, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            for _ in range(MOST_ROUNDS):
                edits = _edits(jaxpr, context, decisions)
                if not edits:
                    break
                jaxpr = apply_edits(jaxpr, edits)[0]
            return jaxpr

        new = rewrite_levels(program, level)
        return (program if new is program else normalize(new)[0]), decisions


def _edits(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> list[Edit]:
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    is_finite = Exactness.FINITE in context.allowed
    hot = is_finite and names.issuperset(("iota", "eq"))
    if names.isdisjoint(("gather", "scatter-add")) and not hot:
        return []
    level, edits = Level(jaxpr), list[Edit]()
    facts = structure(jaxpr) if hot else Facts({})
    for place, eqn in enumerate(jaxpr.eqns):
        exact, name = Exactness.NO_WORSE, eqn.primitive.name
        found, what = list[Edit](), "what is linear in one entry of each row is done for the entry"
        if name == "gather":
            early = picked_early(level, place)
            found, what = [] if early is None else [early], "entries are picked before they are computed"
        elif is_finite and (name == "scatter-add" or (hot and name in ("convert_element_type", "select_n"))):
            found, exact = late_entries(level, place, facts), Exactness.FINITE
        if not found and name == "scatter-add":
            found, what = scattered_sums(level, place), "rows that hold one entry are not summed up"
            exact = Exactness.NO_WORSE
        edits += found
        why = "what is beside the entries is not needed"
        decisions += [Decision(NAME, what, where(eqn), True, why, exactness=exact) for _ in found]
    return edits
