"""Whether JAX's CPU client has the thread that calls run a program, as far as sizes tell (see `kernels/counted.py`)."""

from aerogel._jax import Jaxpr, JaxprEqn

from .account import nested_programs
from .flat import kind_of
from .primitives import Kind
from .sizes import elements

# A program with so many operations is not short.
NOT_SHORT = 1_000
# XLA's transcendental functions, which are not counted.
FREE = frozenset("cbrt cos erf exp expm1 log log1p logistic pow rsqrt sin sqrt tan tanh atan2".split())


def is_surely_short(jaxpr: Jaxpr) -> bool:
    """Whether few operations are counted in a program, if that is one for each entry and none for what is not counted.

    A loop counts as one step.
    """
    return _counted(jaxpr) < NOT_SHORT


def _counted(jaxpr: Jaxpr) -> int:
    return sum(map(_counted_in, jaxpr.eqns))


def _counted_in(eqn: JaxprEqn) -> int:
    inner = nested_programs(eqn)
    if inner:
        return sum(map(_counted, inner))
    kind = kind_of(eqn)
    if kind is Kind.VIEW or eqn.primitive.name in FREE:
        return 0
    values = eqn.outvars if kind in (Kind.CHEAP, Kind.DEAR) else (*eqn.invars, *eqn.outvars)
    return max((elements(x.aval) for x in values), default=0)
