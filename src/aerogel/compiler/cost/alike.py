"""Which equations are alike: of one operation on values of the same types, whatever the variables are."""

from collections.abc import Hashable

import numpy as np

from aerogel._jax import DropVar, JaxprEqn

from ..program import inner_jaxprs, is_var
from .primitives import ELEMENTWISE_FLOPS, REDUCE

# What an equation of these is hangs on its parameters and types alone, wherever it stands.
SIMPLE = frozenset((*ELEMENTWISE_FLOPS, *REDUCE, "dot_general", "reshape", "squeeze")) - {"axis_index"}


def kind_of(eqn: JaxprEqn) -> Hashable | None:
    """Equal for simple equations that differ in their variables alone; None for others.

    A value that is read twice is another kind than two values, and so is a result that nobody reads.
    """
    if eqn.primitive.name not in SIMPLE or inner_jaxprs(eqn):
        return None
    first = {x: k for k, x in reversed(list(enumerate(eqn.invars))) if is_var(x)}
    types = [(x.aval, first[x]) if is_var(x) else (x.aval, type(x.val), np.shape(x.val)) for x in eqn.invars]
    outs = [(v.aval, isinstance(v, DropVar)) for v in eqn.outvars]
    kind = (eqn.primitive, *types, *outs, *eqn.params.items(), eqn.ctx)
    try:
        hash(kind)
    except TypeError:
        return None
    return kind
