"""How many operations JAX's CPU client counts in a program: it has another thread run what is not short.

The client asks XLA's cost analysis about the compiled program (`HloCostAnalysis`, jaxlib 0.10.2 and 0.12). That counts
the body of a loop once, whatever its length, and transcendental functions not at all: 1,000 additions are run by
another thread, 4,000,000 sines are not.
"""

import math

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn

from ..axes.rebind import dtype_name
from ..cost.account import nested_programs
from ..cost.flat import kind_of
from ..cost.primitives import ELEMENTWISE_FLOPS, REDUCE, Kind
from ..cost.short import FREE as FREE
from ..cost.short import NOT_SHORT as NOT_SHORT
from ..cost.sizes import elements
from ..cost.work import dot_shape, equation_flops
from ..small_traces import traced
from .one_kernel import TYPES

# What XLA adds to a sum by taking it apart.
_OF_SUM = 1.03
_OF_COUNTER = 3  # of a loop, in each step
_DEAREST_PLAIN = 10  # what has a larger weight becomes arithmetic before it is counted


def counted(jaxpr: Jaxpr) -> float:
    """The operations that are counted in a program, or about so many; infinite where that is not known."""
    return sum(map(counted_in, jaxpr.eqns))


def counted_in(eqn: JaxprEqn) -> float:
    """The same of one equation."""
    name, kind = eqn.primitive.name, kind_of(eqn)
    inner = [counted(body) for body in nested_programs(eqn)]
    if inner:
        return max(inner) if kind is Kind.BRANCH else sum(inner) + (_OF_COUNTER if kind is Kind.LOOP else 0)
    if kind is Kind.VIEW or not eqn.outvars:
        return 0
    if name in _jax.OURS:
        return counted(traced(_jax.OURS[name], [x.aval for x in eqn.invars], eqn).jaxpr)
    if not all(dtype_name(x) in TYPES for x in (*eqn.invars, *eqn.outvars)):
        return math.inf  # complex numbers and short floats are taken apart
    result = elements(eqn.outvars[0].aval)
    if name in ELEMENTWISE_FLOPS:
        weight = ELEMENTWISE_FLOPS[name]
        return 0 if name in FREE else result * weight if weight > _DEAREST_PLAIN else _plain(eqn, weight)
    if name in REDUCE and name != "reduce":
        return (6 if name in ("argmax", "argmin") else _OF_SUM) * (elements(eqn.invars[0].aval) - result)
    if name.startswith("scatter"):
        return elements(eqn.invars[2].aval)
    return 2 * math.prod(dot_shape(eqn)) if name == "dot_general" else math.inf


def _plain(eqn: JaxprEqn, weight: int) -> int:
    """Of an arithmetic operation: one for each entry; powers are products."""
    if eqn.primitive.name == "integer_pow":
        return equation_flops(eqn)
    return elements(eqn.outvars[0].aval) if weight else 0
