"""What a program computes from counters and literals alone, as numbers: the frequencies of a transform, say."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from .level import Level

DEEPEST = 50

_ENTRYWISE: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod, "neg": np.negative,
    "abs": np.abs, "max": np.maximum, "min": np.minimum, "square": np.square, "sqrt": np.sqrt, "sign": np.sign,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
}  # fmt: skip
_LOGICAL = frozenset(("and", "or", "not"))


def _broadcast(eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    aligned = [x.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))]
    return np.broadcast_to(x.reshape(aligned), shape)


def _iota(eqn: JaxprEqn) -> np.ndarray:
    shape, dim = eqn.params["shape"], eqn.params["dimension"]
    aligned = [n if d == dim else 1 for d, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dim], dtype=eqn.params["dtype"]).reshape(aligned), shape)


def _slice(eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    p = eqn.params
    strides = p["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, p["start_indices"], p["limit_indices"], strides))]


_OTHERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "iota": _iota,
        "broadcast_in_dim": _broadcast,
        "slice": _slice,
        "reshape": lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape),
        "squeeze": lambda eqn, x: x.reshape(eqn.outvars[0].aval.shape),
        "transpose": lambda eqn, x: x.transpose(eqn.params["permutation"]),
        "concatenate": lambda eqn, *xs: np.concatenate(xs, eqn.params["dimension"]),
        "convert_element_type": lambda eqn, x: x.astype(eqn.params["new_dtype"]),
        "integer_pow": lambda eqn, x: x ** eqn.params["y"],
        "select_n": lambda eqn, which, no, yes: np.where(which, yes, no),
    }
)


def counted(level: Level, x: Atom, depth: int = 0) -> np.ndarray | None:
    """A value that is made from counters and literals by common arithmetic, in its own type; None of another."""
    if isinstance(x, Literal):
        return np.asarray(x.val, x.aval.dtype)
    eqn = level.maker(x)
    if eqn is None or depth > DEEPEST or not _is_known(eqn):
        return None
    operands: list[np.ndarray] = []
    for v in eqn.invars:
        value = counted(level, v, depth + 1)
        if value is None:
            return None
        operands.append(value)
    name = eqn.primitive.name
    with np.errstate(all="ignore"):
        made = _ENTRYWISE[name](*operands) if name in _ENTRYWISE else _OTHERS[name](eqn, *operands)
    return np.asarray(made, eqn.outvars[0].aval.dtype)


def _is_known(eqn: JaxprEqn) -> bool:
    name, out = eqn.primitive.name, eqn.outvars[0] if len(eqn.outvars) == 1 else None
    dtype = getattr(getattr(out, "aval", None), "dtype", None)
    if not isinstance(out, Var) or not isinstance(dtype, np.dtype) or dtype.kind not in "biufc":
        return False
    if name in _LOGICAL or (name == "select_n" and len(eqn.invars) != 3):
        return dtype.kind == "b"
    return name in _ENTRYWISE or name in _OTHERS
