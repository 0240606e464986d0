"""Mirrored products: a product that is only summed up is left out where the program holds its mirror image.

`sum(a * (x @ B.T))` is `sum((a @ B) * x)`: see `networks/mirrored_products.py`.
"""

from functools import partial
from typing import ClassVar

from aerogel._jax import Jaxpr, Var

from ..exactness import Exactness
from ..known.structure import structure
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..networks.mirrored_products import mirrored_product
from ..networks.sums_along import summed_along_first
from ..normalize import normalize
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "mirrored-products"
WHAT = "a sum takes the product of its weights, not of what it weights"
MOST_ROUNDS = 32  # a product for each layer


@record
class MirroredProducts:
    """The pass. Bound: 32 sums of a level, with at most 200 entrywise equations below each."""

    early: ClassVar = True  # the gradient then has none of both either

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without such products, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions))
        return (program if new is program else normalize(new)[0]), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    """A level without such products; what is summed in their place is summed along one dimension first."""
    sums: list[Var] = []
    for _ in range(MOST_ROUNDS if _may_have(jaxpr) else 0):
        level = Level(jaxpr)
        found = mirrored_product(level, partial(structure, jaxpr), context.machine)
        if found is None:
            break
        sums += found.sums
        reason = f"that is made anyway; {1e6 * found.seconds_before:.1f} us become {1e6 * found.seconds_after:.1f} us"
        line = where(level.eqns[found.edit.place])
        decisions.append(Decision(NAME, WHAT, line, True, reason, exactness=Exactness.FINITE))
        jaxpr = apply_edits(jaxpr, [found.edit])[0]
    for total in sums:
        level = Level(jaxpr)
        place = level.made_by.get(total)
        if place is not None:
            edit = summed_along_first(level, structure(jaxpr), place, context.machine)
            jaxpr = apply_edits(jaxpr, [edit])[0] if edit is not None else jaxpr
    return jaxpr


def _may_have(jaxpr: Jaxpr) -> bool:
    """Whether there are three products: one, its image, and one before the sum."""
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) > 1
