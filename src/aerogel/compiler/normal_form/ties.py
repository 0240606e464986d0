"""Which operand an extremum is: a comparison of its operands, not with the extremum.

Users ask whether `a` is `y = max(a, b)`, and so does JAX's derivative of it (0.10.2; 0.12 compares the operands). XLA
computes `a` once where it makes `y` and once more where it compares them; a product and a sum may be one instruction
here and two there, and then neither operand is the maximum: the gradient is 0. `a >= b` says the same of the same
numbers (of nan and zeros too) and does not hang on that. It does not read `y` either.
"""

import numpy as np
from jax import lax

from aerogel._jax import JaxprEqn, Var

from ..program import is_var
from ..same import literal_key

_TESTS = {"max": lax.ge_p, "min": lax.le_p}


class Ties:
    """The extrema of two operands that were met so far, in one level."""

    def __init__(self) -> None:
        self._made: dict[Var, JaxprEqn] = {}

    def simplest(self, eqn: JaxprEqn) -> JaxprEqn:
        """The equation; for one that asks whether an operand is the extremum, one that compares the two operands."""
        if eqn.primitive.name in _TESTS and not np.issubdtype(eqn.outvars[0].aval.dtype, np.complexfloating):
            self._made[eqn.outvars[0]] = eqn
        if eqn.primitive.name != "eq":
            return eqn
        for one, extremum in (eqn.invars, eqn.invars[::-1]):
            made = self._made.get(extremum) if is_var(extremum) else None
            keys = [] if made is None else [literal_key(x) for x in made.invars]
            if made is not None and literal_key(one) in keys:
                other = made.invars[1 - keys.index(literal_key(one))]
                return eqn.replace(primitive=_TESTS[made.primitive.name], invars=[one, other])
        return eqn
