"""Library sums: how sums and extrema are given to XLA's library, so that it makes sums, and no more than these.

It takes some for products of matrices (`weighted_sums.py`): -0.0 is what may be added to any number, and to nan,
without changing it, and then there is no product. Some it makes together with what is computed of them
(`sums_apart.py`): it has no selections, so that one between the sum and zero, whose condition always holds, is where it
ends; XLA's own kernel goes on there. Both constants stand behind barriers, as XLA would drop them.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn

from ..axes.rebind import dtype_name
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Builder, Program, where
from ..readers.own_broadcasts import ROOTS, TYPES
from ..readers.sums_apart import goes_on
from ..readers.weighted_sums import is_faster_apart, is_product, is_weighted
from ..report import Decision

NAME = "library-sums"
NO_PRODUCT = "XLA's library would take it for a product of matrices", "-0.0 is added to what {} adds up"
NO_MORE = (
    "XLA's library is fast at such sums, but not where it goes on with them",
    "{} is made apart from what reads it",
)


@dataclass(frozen=True)
class LibrarySums:
    """The pass. Bound: each sum is looked at once. CPUs only. It runs behind those that decide what a sum reads."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums in another form, and decisions for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []

        def rewritten(jaxpr: Jaxpr) -> Jaxpr:
            level = Level(jaxpr)
            edits: list[Edit] = []
            for place, eqn in enumerate(level.eqns):
                if eqn.primitive.name in ROOTS and dtype_name(eqn.invars[0]) in TYPES:
                    multiplies, more = _forms(level, eqn)
                    if multiplies or more:
                        edits.append(_given(level, place, multiplies, more))
                        found = [NO_PRODUCT] * multiplies + [NO_MORE] * more
                        decisions.extend(_decision(eqn, *one) for one in found)
            return apply_edits(jaxpr, edits)[0] if edits else jaxpr

        return rewrite_levels(program, rewritten), decisions


def _forms(level: Level, eqn: JaxprEqn) -> tuple[bool, bool]:
    """Whether a sum is made no product, and whether it is made apart."""
    multiplies, more = is_product(level, eqn), goes_on(level, eqn)
    if more and eqn.invars[0].aval.dtype.itemsize <= 4 and is_weighted(level, eqn):
        more = is_faster_apart(level, eqn)
        return multiplies or more, more
    return multiplies, more


def _decision(eqn: JaxprEqn, reason: str, what: str) -> Decision:
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    sizes, over = (" x ".join(map(str, aval.shape)), ", ".join(map(str, axes)))
    name = what.format(f"a `{eqn.primitive.name}` over axis {over} of {sizes}")
    return Decision(NAME, name, where(eqn), True, reason, exactness="reassociates")


def _given(level: Level, place: int, multiplies: bool, more: bool) -> Edit:
    """The sum of the same numbers, to which -0.0 is added if it multiplies, behind a selection if more is to come."""
    eqn = level.eqns[place]
    builder = Builder(eqn)

    def same(x: jax.Array) -> jax.Array:
        if multiplies:
            zero = lax.optimization_barrier(np.asarray(-0.0, x.dtype))
            x = lax.add(x, lax.broadcast(zero, x.shape))
        total = eqn.primitive.bind(x, **eqn.params)
        if more:
            always = lax.optimization_barrier(np.asarray(True))
            total = lax.select(lax.broadcast(always, total.shape), total, lax.full_like(total, 0))
        return total

    (total,) = builder.call(same, eqn.invars[0])
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: total}, here)
