"""Masks of results: where `max(x, 0)` is, `x > 0` is asked of it.

The gradient of `relu` reads the sign of what went in, that of the next layer reads what came out: both are stored.
What came out has the same sign, and then what went in need not be. See docs/explanation/masks-of-results.md.
"""

from typing import ClassVar

import numpy as np

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..cost import nbytes
from ..exactness import Exactness
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Program, inner_jaxprs, is_var, producers, rename, where, with_equations
from ..record import record
from ..report import Decision

NAME = "masks-of-results"
CALLS = ("jit", "custom_jvp_call", "closed_call")
REASON = "what went in need not be kept"
# XLA makes the larger one again where the comparison is read: for each edge of a graph, not for each of its nodes.
SCATTERED = "what a scatter makes is in memory, and is compared as it is"
WHAT = "whether a number is above 0 is asked of the larger one of it and 0"


@record
class MasksOfResults:
    """The pass. Bound: each equation is looked at once. NaN is above nothing, before and behind `max`."""

    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such comparisons changed, and a decision for each."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    larger: dict[Var, Var] = {}
    eqns: list[JaxprEqn] = []
    makers = producers(jaxpr)
    for eqn in jaxpr.eqns:
        x = above_zero(eqn)
        if x is not None:
            larger.setdefault(x, eqn.outvars[0])
        elif eqn.primitive.name == "gt" and is_var(eqn.invars[0]) and _is_zero(eqn.invars[1]):
            x = eqn.invars[0]
            if x in larger and x in makers and jaxpr.eqns[makers[x]].primitive.name.startswith("scatter"):
                decisions.append(Decision(NAME, WHAT, where(eqn), False, SCATTERED))
            elif x in larger:
                eqn = rename(eqn, {x: larger[x]})
                decisions.append(Decision(NAME, WHAT, where(eqn), True, REASON, peak_bytes_saved=nbytes(x.aval)))
        eqns.append(eqn)
    return jaxpr if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)) else with_equations(jaxpr, eqns)


def above_zero(eqn: JaxprEqn) -> Var | None:
    """The `x` of an equation that makes `max(x, 0)`, as it stands or in a call (`jax.nn.relu` is one)."""
    if eqn.primitive.name == "max":
        return next((x for x, y in (eqn.invars, eqn.invars[::-1]) if is_var(x) and _is_zero(y)), None)
    if eqn.primitive.name not in CALLS or len(eqn.invars) != 1 or not is_var(eqn.invars[0]):
        return None
    (inner,) = inner_jaxprs(eqn)
    if len(inner.eqns) != 1 or inner.outvars != inner.eqns[0].outvars:
        return None
    return eqn.invars[0] if above_zero(inner.eqns[0]) is inner.invars[0] else None


def _is_zero(x: Atom) -> bool:
    return isinstance(x, Literal) and not np.any(x.val)
