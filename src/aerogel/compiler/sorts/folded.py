"""Small numbers that are known before a program runs: what is computed from literals and constants alone."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..level import Level

LARGEST = 64  # entries
LONGEST_CHAIN = 16


def _reshaped(eqn: JaxprEqn, x: Any) -> Any:
    return np.reshape(x, eqn.outvars[0].aval.shape)


def _broadcast(eqn: JaxprEqn, x: Any) -> Any:
    shape, to = eqn.outvars[0].aval.shape, eqn.params["broadcast_dimensions"]
    return np.broadcast_to(np.reshape(x, [x.shape[to.index(d)] if d in to else 1 for d in range(len(shape))]), shape)


def _slice(eqn: JaxprEqn, x: Any) -> Any:
    p = eqn.params
    strides = p["strides"] or (1,) * x.ndim
    return x[tuple(slice(*s) for s in zip(p["start_indices"], p["limit_indices"], strides, strict=True))]


# Operations that round as XLA rounds them, in the type of their operands.
_FOLDS: dict[str, Callable[..., Any]] = {
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "max": lambda _, a, b: np.maximum(a, b),
    "min": lambda _, a, b: np.minimum(a, b),
    "lt": lambda _, a, b: a < b,
    "floor": lambda _, a: np.floor(a),
    "ceil": lambda _, a: np.ceil(a),
    "clamp": lambda _, low, x, high: np.minimum(np.maximum(x, low), high),
    "select_n": lambda _, p, *cases: np.choose(p.astype(np.int32), cases),
    "convert_element_type": lambda eqn, x: x.astype(eqn.params["new_dtype"]),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "expand_dims": _reshaped,
    "slice": _slice,
}


def folded(level: Level, x: Atom, constants: Mapping[Var, Any], depth: int = 0) -> Any:
    """The value of an atom, as an array of numpy's; None if it is not known before the program runs.

    Args:
        level: where it is.
        x: of at most 64 entries.
        constants: what the program closes over.
    """
    if np.prod(getattr(x.aval, "shape", ()), dtype=int) > LARGEST or depth > LONGEST_CHAIN:
        return None
    if isinstance(x, Literal):
        return np.asarray(x.val, x.aval.dtype)
    if x in constants:
        return np.asarray(constants[x])
    maker = level.maker(x)
    if maker is None or maker.primitive.name not in _FOLDS or maker.effects or len(maker.outvars) != 1:
        return None
    operands = [folded(level, y, constants, depth + 1) for y in maker.invars]
    if any(one is None for one in operands):
        return None
    return np.asarray(_FOLDS[maker.primitive.name](maker, *operands)).astype(x.aval.dtype)
