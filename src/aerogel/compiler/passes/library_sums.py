"""Library sums: how sums and extrema are given to XLA's library, so that it makes sums, and no more than these.

It takes some for products of matrices (`weighted_sums.py`): -0.0 is what may be added to any number, and to nan,
without changing it, and then there is no product. Some it makes together with what is computed of them
(`sums_apart.py`): it has no selections, so that one between the sum and zero, whose condition always holds, is where it
ends; XLA's own kernel goes on there. Both constants stand behind barriers, as XLA would drop them. What is repeated
along an axis it may add up too often (`repeated_sums.py`): one entry is, times their number.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn

from ..axes.rebind import dtype_name, shape_of
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Builder, Program, where
from ..readers.own_broadcasts import ROOTS, TYPES
from ..readers.repeated_sums import repeated_axes
from ..readers.sums_apart import goes_on
from ..readers.weighted_sums import is_faster_apart, is_product, is_weighted
from ..record import record
from ..report import Decision

NAME = "library-sums"
NO_PRODUCT = "XLA's library would take it for a product of matrices", "-0.0 is added to what {} adds up"
NO_MORE = (
    "XLA's library is fast at such sums, but not where it goes on with them",
    "{} is made apart from what reads it",
)

ONCE = "what is repeated is added up once, times its number", "{} is one over fewer entries"


@record
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
                    repeated = repeated_axes(level, eqn)
                    if repeated:
                        edits.append(_once(level, place, repeated))
                        decisions.append(_decision(eqn, *ONCE))
                        continue
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


def _once(level: Level, place: int, repeated: Sequence[int]) -> Edit:
    """The sum over all other axes, times the number of entries along the repeated ones."""
    eqn = level.eqns[place]
    builder = Builder(eqn)
    kept = [d for d in range(len(shape_of(eqn.invars[0]))) if d not in repeated]
    rest = [k for k, d in enumerate(kept) if d in eqn.params["axes"]]

    def fewer(x: jax.Array) -> jax.Array:
        ends = [1 if d in repeated else n for d, n in enumerate(x.shape)]
        one = lax.reshape(lax.slice(x, [0] * x.ndim, ends), [x.shape[d] for d in kept])
        wide = np.float32 if x.dtype.itemsize < 4 else x.dtype  # bfloat16 has no 257
        total = lax.reduce_sum(lax.convert_element_type(one, wide), rest)
        total = lax.mul(total, lax.full_like(total, math.prod(x.shape[d] for d in repeated)))
        return lax.convert_element_type(total, x.dtype)

    (total,) = builder.call(fewer, eqn.invars[0])
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: builder.as_weak_as(eqn.outvars[0], total)}, here)


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
