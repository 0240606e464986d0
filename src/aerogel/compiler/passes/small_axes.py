"""Small axes: a reduction over, or beside, a short last axis is made entry by entry (`short_axes.py`)."""

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from ..short_axes.short_axes import Site, acts, entry_by_entry
from ..streams.odd_rows import OddRows, rows_apart

NAME = "small-axes"


@record
class SmallAxes:
    """The pass. Bound: every reduction is looked at once. CPUs only."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such reductions made entry by entry, and a decision for each."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            new, sites = entry_by_entry(jaxpr, context)
            made = [] if context.before_differentiation else [site.eqn for site in sites if site.edit is not None]
            apart, rows = rows_apart(jaxpr, made)
            if rows:
                decisions.extend(map(_apart, rows))
                new, sites = entry_by_entry(apart, context)
            decisions.extend(map(_decision, sites))
            return new

        return (rewrite_levels(program, level) if acts(context) else program), decisions


def _apart(found: OddRows) -> Decision:
    what = f"the last of {found.length:,} rows is worked on by itself"
    why = "the others are two like halves"
    return Decision(NAME, what, where(found.eqn), True, why, exactness=Exactness.REASSOCIATES)


def _decision(site: Site) -> Decision:
    x = site.eqn.invars[0].aval
    which = "a last axis" if site.axis in (-1, x.ndim - 1) else "an axis"
    what = f"`{site.eqn.primitive.name}` with {which} of {x.shape[site.axis]} is made entry by entry"
    return Decision(NAME, what, where(site.eqn), site.edit is not None, site.reason, exactness=Exactness.REASSOCIATES)
