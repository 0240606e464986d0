"""Late values: what a gradient's backward part can make again for less than keeping it (see `late_values.py`).

See docs/explanation/late-values.md.
"""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..cost import nbytes
from ..cost.account import jaxpr_cost
from ..cost.vector_code import with_vector_code
from ..cost.work import copied_operands
from ..exactness import Exactness
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from ..residuals.late_values import MadeAgain, made_again, with_made_again
from ..residuals.recompute import Lives
from ..residuals.scattered import scattered_onto

NAME = "late-values"
REASON = "computing them where they are read costs less than writing and reading them"
# Of what is kept less, so much must be held less at once: of a single layer the backward part holds as much again.
LEAST_OF_SAVED = 0.25


@record
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
            lives = Lives.of(drop_dead(scattered_onto(jaxpr)))
            found = made_again(lives, machine)
            if found is None:
                return jaxpr
            new = drop_dead(with_made_again(lives, found))
            falls = jaxpr_cost(lives.jaxpr).peak_bytes - jaxpr_cost(new).peak_bytes - _copied_bytes(lives.jaxpr)
            is_lower = falls >= LEAST_OF_SAVED * found.bytes_saved
            decisions.append(_decision(lives, found, falls, is_lower))
            return new if is_lower else jaxpr

        return rewrite_levels(program, level), decisions


def _copied_bytes(jaxpr: Jaxpr) -> int:
    """The most that XLA copies for a product, which is held beside what is made again, too.

    Of a layer of experts 2 MB less were in use where 19 were predicted, at 0.98 of plain JAX's time and not 0.80.
    """
    products = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general")
    return max((sum(map(nbytes, copied_operands(eqn))) for eqn in products), default=0)


def _decision(lives: Lives, found: MadeAgain, falls: int, is_lower: bool) -> Decision:
    held = f"{found.bytes_saved / 1e6:.1f} MB less would be kept, but only {falls / 1e6:.1f} MB less held at once"
    return Decision(
        NAME,
        f"{len(found.values)} values of the forward part are computed again in the backward part",
        where(lives.jaxpr.eqns[lives.peak]),
        is_lower,
        REASON if is_lower else held,
        bytes_saved=2 * found.bytes_saved if is_lower else 0,
        peak_bytes_saved=falls if is_lower else 0,
        exactness=Exactness.NO_WORSE,
    )
