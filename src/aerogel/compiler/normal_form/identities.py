"""Equations that do nothing, and scalar arithmetic on literals: each becomes an atom that stands already."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..program import is_var


def simplify_equation(eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn] = MappingProxyType({})) -> Atom | None:
    """The atom that the single result of `eqn` equals bit for bit; None if there is none known.

    Args:
        makers: the equations that make the variables it reads, as far as they are known.
    """
    if len(eqn.outvars) != 1:
        return None
    test = NO_OPS.get(eqn.primitive.name)
    if test is not None and test(eqn) and _same_type(eqn.invars[0], eqn.outvars[0]):
        return eqn.invars[0]
    if eqn.primitive.name == "concatenate":  # `jnp.roll` by nothing joins a value and an empty slice
        return next((x for x in eqn.invars if is_var(x) and _same_type(x, eqn.outvars[0])), None)
    if eqn.primitive.name == "select_n":
        return _chosen(eqn, makers)
    if eqn.primitive.name == "mul" and (factor := _times_one(eqn, makers)) is not None:
        return factor
    if eqn.primitive.name in FOLDED and not any(is_var(x) for x in eqn.invars):
        return _folded(eqn)
    return None


def _same_type(a: Any, b: Any) -> bool:
    return a.aval == b.aval and getattr(a.aval, "weak_type", False) == getattr(b.aval, "weak_type", False)


def _is_identity_broadcast(eqn: JaxprEqn) -> bool:
    return len(eqn.invars) == 1 and tuple(eqn.params["broadcast_dimensions"]) == tuple(range(len(eqn.params["shape"])))


def _is_whole_slice(eqn: JaxprEqn) -> bool:
    strides = eqn.params["strides"]
    return not any(eqn.params["start_indices"]) and (strides is None or all(s == 1 for s in strides))


# Each holds when the result has the type of the (first) input; `simplify_equation` checks that.
NO_OPS: dict[str, Callable[[JaxprEqn], bool]] = {
    "convert_element_type": lambda eqn: eqn.params.get("sharding") is None,
    "broadcast_in_dim": _is_identity_broadcast,
    "reshape": lambda eqn: len(eqn.invars) == 1 and eqn.params["dimensions"] is None and eqn.params["sharding"] is None,
    "transpose": lambda eqn: tuple(eqn.params["permutation"]) == tuple(range(len(eqn.params["permutation"]))),
    "squeeze": lambda eqn: not eqn.params["dimensions"],
    "slice": _is_whole_slice,
    "reduce_sum": lambda eqn: not eqn.params["axes"],
    "reduce_max": lambda eqn: not eqn.params["axes"],
    "reduce_min": lambda eqn: not eqn.params["axes"],
    "reduce_prod": lambda eqn: not eqn.params["axes"],
}


def _chosen(eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn]) -> Atom | None:
    """A `select_n` whose predicate is a literal, repeated or not, or whose cases are one variable."""
    which, *cases = eqn.invars
    maker = makers.get(which) if is_var(which) else None
    if maker is not None and maker.primitive.name == "broadcast_in_dim":  # whether indices of NumPy's are below zero
        which = maker.invars[0]
    if isinstance(which, Literal) and not which.aval.shape:
        case = cases[int(which.val)]
        return case if _same_type(case, eqn.outvars[0]) else None
    first = cases[0]
    if is_var(first) and all(x is first for x in cases) and _same_type(first, eqn.outvars[0]):
        return first
    return None


def _times_one(eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn]) -> Atom | None:
    """The factor that is multiplied with ones, as the derivative of a sum is."""
    if jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.complexfloating):
        return None  # an infinite factor times 0 is no number
    for one, other in (eqn.invars, eqn.invars[::-1]):
        if is_var(other) and _same_type(other, eqn.outvars[0]) and _is_one(one, makers):
            return other
    return None


def _is_one(x: Atom, makers: Mapping[Var, JaxprEqn]) -> bool:
    """Whether it is an array of ones. Numbers stay: `x[i] * i` is the same for each `i` where loops are looked for."""
    maker = makers.get(x) if is_var(x) else None
    if maker is None or maker.primitive.name != "broadcast_in_dim":
        return False
    one = maker.invars[0]
    return isinstance(one, Literal) and bool(np.all(one.val == 1))


# Exactly rounded operations only: what NumPy gives is what every backend gives, half precision included.
FOLDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.bitwise_not,
    "convert_element_type": lambda x: x,
}


def _folded(eqn: JaxprEqn) -> Atom | None:
    """Arithmetic on scalar literals, where every backend gives the same bits: `jnp.var` asks `n - ddof > 0`."""
    aval = eqn.outvars[0].aval
    values = [np.asarray(x.val, x.aval.dtype) for x in eqn.invars if isinstance(x, Literal)]
    if aval.shape or not all(map(_is_plain, values)):
        return None
    if eqn.primitive.name == "convert_element_type" and _is_inexact(values[0].dtype) and not _is_inexact(aval.dtype):
        return None  # out of range, backends differ
    with np.errstate(all="ignore"):
        result = np.asarray(FOLDED[eqn.primitive.name](*values)).astype(aval.dtype)
    return _jax.literal(result, aval) if _is_plain(result) else None


def _is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _is_plain(value: np.ndarray) -> bool:
    """A boolean, an integer, or a normal number: threads of XLA's CPU backend take subnormal ones for zero."""
    if value.dtype.kind in "biu":
        return True
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return False
    return bool(value == 0 or (np.isfinite(value) and abs(value) >= jnp.finfo(value.dtype).tiny))
