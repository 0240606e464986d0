"""What is known of the values of a program before it runs: that one is an identity, a one-hot row, a repeated value.

`structure(jaxpr)` walks over the equations once, forwards; `structures.py` says what each primitive's result is known
to be, `records.py` what there is to know. An unknown primitive promises nothing.
"""

from collections.abc import Mapping

from aerogel._jax import Jaxpr, Var

from .records import Facts, Known, closed
from .structures import LEARN


def structure(jaxpr: Jaxpr, given: Mapping[Var, Known] | None = None) -> Facts:
    """What is known of each value of one level of a program; linear in its size.

    Args:
        jaxpr: nested programs are not looked into.
        given: what is known of the inputs.
    """
    facts = Facts(dict(given or {}))
    for eqn in jaxpr.eqns:
        learn = LEARN.get(eqn.primitive.name)
        if learn is None or len(eqn.outvars) != 1 or not hasattr(eqn.outvars[0].aval, "shape"):
            continue
        facts.learn(eqn.outvars[0], closed(frozenset(learn(eqn, facts)), eqn.outvars[0].aval))
    return facts
