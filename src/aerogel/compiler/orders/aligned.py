"""Equations whose operands and results have their dimensions in the same places, and what they are in another order."""

from typing import Any

from aerogel._jax import JaxprEqn

from ..axes.elementwise import NAMES
from .orders import Order, permute

ELEMENTWISE = frozenset(NAMES)
# Of these a parameter names a dimension, or has an entry for each.
_BY_DIMENSION = {
    "cumsum": "axis", "cumprod": "axis", "cummax": "axis", "cummin": "axis", "cumlogsumexp": "axis",
    "concatenate": "dimension",
}  # fmt: skip
_PER_DIMENSION = {"slice": ("start_indices", "limit_indices", "strides"), "pad": ("padding_config",)}


def is_aligned(eqn: JaxprEqn) -> bool:
    """Whether every operand is a scalar or has the results' dimensions in the results' places."""
    name = eqn.primitive.name
    if name not in ELEMENTWISE and name not in _BY_DIMENSION and name not in _PER_DIMENSION and name != "rev":
        return False
    rank = len(getattr(eqn.outvars[0].aval, "shape", ()))
    return all(len(getattr(x.aval, "shape", ())) in (0, rank) for x in (*eqn.invars, *eqn.outvars))


def aligned_params(eqn: JaxprEqn, order: Order) -> dict[str, Any]:
    """Parameters of an aligned equation whose values are stored in `order`."""
    name, params = eqn.primitive.name, eqn.params
    if name in _BY_DIMENSION:
        key = _BY_DIMENSION[name]
        return {**params, key: order.index(params[key])}
    if name == "rev":
        return {**params, "dimensions": tuple(sorted(order.index(d) for d in params["dimensions"]))}
    keys = _PER_DIMENSION.get(name, ())
    return {**params, **{key: permute(params[key], order) for key in keys if params[key] is not None}}
