"""Values of a program that depend on none of its inputs, as NumPy computes them: masks and arrays of one number."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import _jax
from ..._jax import Atom, Jaxpr, JaxprEqn, Literal, Var
from ..program import producers

DEEPEST = 30  # equations behind each other
MOST = 1 << 24  # numbers


def _broadcast(eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    between = [1] * len(shape)
    for d, n in zip(dims, x.shape, strict=True):
        between[d] = n
    return np.broadcast_to(x.reshape(between), shape)


def _iota(eqn: JaxprEqn) -> np.ndarray:
    shape, dim = eqn.params["shape"], eqn.params["dimension"]
    around = [1] * len(shape)
    around[dim] = shape[dim]
    return np.broadcast_to(np.arange(shape[dim], dtype=eqn.params["dtype"]).reshape(around), shape)


# Nothing that rounds: NumPy's functions need not round as XLA's do.
_EXACT: dict[str, Callable[..., Any]] = {
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda eqn, x: x.reshape(eqn.params["new_sizes"]),
    "transpose": lambda eqn, x: x.transpose(eqn.params["permutation"]),
    "eq": lambda _, x, y: x == y,
    "ne": lambda _, x, y: x != y,
    "ge": lambda _, x, y: x >= y,
    "gt": lambda _, x, y: x > y,
    "le": lambda _, x, y: x <= y,
    "lt": lambda _, x, y: x < y,
    "not": lambda _, x: ~x,
    "select_n": lambda _, which, *cases: np.where(which, cases[1], cases[0]),
}
# Of whole numbers these are exact as well.
_WHOLE: dict[str, Callable[..., Any]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "convert_element_type": lambda eqn, x: x.astype(eqn.params["new_dtype"]),
}


class Computed:
    """The values of a level that are known; each is computed once."""

    def __init__(self, jaxpr: Jaxpr, constants: Mapping[Var, Any]):
        self.makers = producers(jaxpr)
        self.eqns = jaxpr.eqns
        self.known: dict[Var, np.ndarray | None] = {}
        self.constants = constants

    def value(self, x: Atom, depth: int = 0) -> np.ndarray | None:
        """The entries of a value; None if they depend on an input, or on what is not computed here."""
        if isinstance(x, Literal):
            return np.asarray(x.val, x.aval.dtype) if isinstance(x.aval.dtype, np.dtype) else None
        if x not in self.known:
            self.known[x] = None
            if x in self.makers and depth < DEEPEST:
                self.known[x] = self._made(self.eqns[self.makers[x]], depth)
            elif x in self.constants:
                self.known[x] = _jax.host_array(self.constants[x])
        return self.known[x]

    def _made(self, eqn: JaxprEqn, depth: int) -> np.ndarray | None:
        (out, *more), name = eqn.outvars, eqn.primitive.name
        whole = all(getattr(x.aval, "dtype", np.dtype(float)).kind in "biu" for x in eqn.invars)
        of = _EXACT.get(name) or (_WHOLE.get(name) if whole else None)
        if of is None or more or eqn.effects or out.aval.size > MOST or not isinstance(out.aval.dtype, np.dtype):
            return None
        operands = [self.value(x, depth + 1) for x in eqn.invars]
        if any(x is None for x in operands):
            return None
        found = np.asarray(of(eqn, *operands))
        return found if found.shape == out.aval.shape and found.dtype == out.aval.dtype else None
