"""Late values: what a gradient's backward part can make again for less than keeping it (see `late_values.py`).

See docs/explanation/late-values.md.
"""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._jax import Jaxpr

from ..cost.vector_code import with_vector_code
from ..exactness import Exactness
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, where
from ..report import Decision
from ..residuals.late_values import MadeAgain, made_again, with_made_again
from ..residuals.recompute import Lives

NAME = "late-values"
REASON = "computing them where they are read costs less than writing and reading them"


@dataclass(frozen=True)
class LateValues:
    """The pass. Bound: one minimum cut for each level."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True
    keeps_derivatives: ClassVar = False

    name: str = NAME
    exactness: Exactness = Exactness.NO_WORSE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program in which such values are made again, and a decision for each level."""
        if context.over_devices:
            return program, []
        decisions: list[Decision] = []
        machine = with_vector_code(context.machine)

        def level(jaxpr: Jaxpr) -> Jaxpr:
            lives = Lives.of(jaxpr)
            found = made_again(lives, machine)
            if found is None:
                return jaxpr
            decisions.append(_decision(lives, found))
            return drop_dead(with_made_again(lives, found))

        return rewrite_levels(program, level), decisions


def _decision(lives: Lives, found: MadeAgain) -> Decision:
    return Decision(
        NAME,
        f"{len(found.values)} values of the forward part are computed again in the backward part",
        where(lives.jaxpr.eqns[lives.peak]),
        True,
        REASON,
        bytes_saved=2 * found.bytes_saved,
        peak_bytes_saved=found.bytes_saved,
        exactness=Exactness.NO_WORSE,
    )
