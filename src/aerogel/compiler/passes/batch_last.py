"""Batch last: what is pooled between convolutions by rows lies as those have it (see `batch_last.py`).

See docs/explanation/batch-last.md.
"""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..orders.batch_last import clusters
from ..orders.in_orders import written_as_they_lie
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "batch-last"
WHAT = "arrays between convolutions have their images last"
REASON = "convolutions that go by rows have them so, and else they would be turned for pooling and back"


@record
class BatchLast:
    """The pass. Bound: each equation is looked at twice."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such arrays turned, and a decision for each group of them."""
        if self.exactness not in context.allowed or context.over_devices:
            return program, []
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            found = clusters(jaxpr)
            if not found:
                return jaxpr
            for one in dict.fromkeys(found.values()):
                saved = one.turned_bytes - one.bordering_bytes
                decisions.append(
                    Decision(NAME, WHAT, where(jaxpr.eqns[one.place]), True, REASON, bytes_saved=2 * saved)
                )
            return drop_dead(written_as_they_lie(jaxpr, found))

        return rewrite_levels(program, level), decisions
