"""What is known of the values of a program before it runs: that one is an identity, a one-hot row, a repeated value.

`structure(jaxpr)` walks over the equations once, forwards; `structures.py` says what each primitive's result is known
to be, `records.py` what there is to know. An unknown primitive promises nothing.
"""

from collections.abc import Iterable, Sequence

from aerogel._jax import Jaxpr, JaxprEqn

from ..program import remembered
from .records import Facts, closed
from .structures import LEARN


def structure(jaxpr: Jaxpr, before: Sequence[JaxprEqn] = ()) -> Facts:
    """What is known of each value of one level of a program; linear in its size. Nobody adds to it.

    Args:
        jaxpr: nested programs are not looked into.
        before: equations that made some of its inputs.
    """
    return _learned((*before, *jaxpr.eqns)) if before else _alone(jaxpr)


@remembered
def _alone(jaxpr: Jaxpr) -> Facts:
    return _learned(jaxpr.eqns)


def _learned(eqns: Iterable[JaxprEqn]) -> Facts:
    facts = Facts({})
    for eqn in eqns:
        learn(eqn, facts)
    return facts


def learn(eqn: JaxprEqn, facts: Facts) -> None:
    """Adds what is known of the result of an equation, given what is known of its operands."""
    found = LEARN.get(eqn.primitive.name)
    if found is not None and len(eqn.outvars) == 1 and hasattr(eqn.outvars[0].aval, "shape"):
        facts.learn(eqn.outvars[0], closed(frozenset(found(eqn, facts)), eqn.outvars[0].aval))
