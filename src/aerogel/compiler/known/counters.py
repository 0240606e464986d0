"""What a program computes from counters and literals alone, as numbers: frequencies of a transform, places in a mask.

Numbers have size 1 along the dimensions in which they repeat themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..level import Level

DEEPEST = 50
MOST_ENTRIES = 1 << 22

ENTRYWISE: dict[str, Callable[..., Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod,
    "neg": np.negative,
    "abs": np.abs, "max": np.maximum, "min": np.minimum, "square": np.square, "sqrt": np.sqrt, "sign": np.sign,
    "floor": np.floor, "ceil": np.ceil, "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
}  # fmt: skip
_LOGICAL = frozenset(("and", "or", "not"))


def _broadcast(eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    return x.reshape([x.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))])


def _iota(eqn: JaxprEqn) -> np.ndarray:
    shape, dim = eqn.params["shape"], eqn.params["dimension"]
    return np.arange(shape[dim], dtype=eqn.params["dtype"]).reshape([n if d == dim else 1 for d, n in enumerate(shape)])


def _slice(eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    p = eqn.params
    strides = p["strides"] or (1,) * x.ndim
    cuts = map(slice, p["start_indices"], p["limit_indices"], strides)
    return x[tuple(cut if n > 1 else slice(None) for n, cut in zip(x.shape, cuts, strict=True))]


def _reshape(eqn: JaxprEqn, x: np.ndarray) -> np.ndarray:
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if [n for n in old if n != 1] == [n for n in new if n != 1]:
        sizes = iter(k for k, n in zip(x.shape, old, strict=True) if n != 1)
        return x.reshape([1 if n == 1 else next(sizes) for n in new])
    return np.broadcast_to(x, old).reshape(new)


def _concatenate(eqn: JaxprEqn, *xs: np.ndarray) -> np.ndarray:
    return np.concatenate(
        [np.broadcast_to(x, v.aval.shape) for x, v in zip(xs, eqn.invars, strict=True)], eqn.params["dimension"]
    )


_OTHERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "iota": _iota,
        "broadcast_in_dim": _broadcast,
        "slice": _slice,
        "reshape": _reshape,
        "squeeze": _reshape,
        "expand_dims": _reshape,
        "transpose": lambda eqn, x: x.transpose(eqn.params["permutation"]),
        "concatenate": _concatenate,
        "convert_element_type": lambda eqn, x: x.astype(eqn.params["new_dtype"]),
        "integer_pow": lambda eqn, x: x ** eqn.params["y"],
        "select_n": lambda eqn, which, no, yes: np.where(which, yes, no),
    }
)
_EXPANDING = frozenset(("reshape", "squeeze", "expand_dims", "concatenate"))


class Makes(Protocol):
    """What knows which equation makes a value: a level, say."""

    def maker(self, x: Atom) -> JaxprEqn | None:
        """The equation that makes a value; None where there is none."""
        ...


@dataclass
class Counters:
    """The numbers of a level that are made from counters and literals by common arithmetic, and from known inputs.

    Attributes:
        level: whose values are asked for.
        of_input: the numbers of what no equation makes, as far as they are known.
    """

    level: Makes
    of_input: Callable[[Var], np.ndarray | None] = field(default=lambda v: None)
    _found: dict[Var, np.ndarray | None] = field(default_factory=dict)

    def of(self, x: Atom, depth: int = 0) -> np.ndarray | None:
        """A value in its own type, of size 1 where it is repeated; None where it is not known, or too large."""
        if isinstance(x, Literal):
            return np.asarray(x.val, x.aval.dtype)
        if x not in self._found:
            self._found[x] = None  # what a carry is told of itself on the way
            self._found[x] = self._made(x, depth)
        return self._found[x]

    def _made(self, x: Var, depth: int) -> np.ndarray | None:
        eqn = self.level.maker(x)
        if eqn is None:
            return self.of_input(x)
        if depth > DEEPEST or not _is_known(eqn):
            return None
        operands: list[np.ndarray] = []
        for v in eqn.invars:
            value = self.of(v, depth + 1)
            if value is None:
                return None
            operands.append(value)
        return evaluated(eqn, operands)


def evaluated(eqn: JaxprEqn, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """What common arithmetic makes of numbers; None of what is none, and of too many."""
    if not _is_known(eqn):
        return None
    name = eqn.primitive.name
    size = eqn.outvars[0].aval.size if name in _EXPANDING else np.broadcast(*operands).size if operands else 1
    if size > MOST_ENTRIES:
        return None
    with np.errstate(all="ignore"):
        made = ENTRYWISE[name](*operands) if name in ENTRYWISE else _OTHERS[name](eqn, *operands)
    return np.asarray(made, eqn.outvars[0].aval.dtype)


def counted(level: Level, x: Atom) -> np.ndarray | None:
    """All entries of a value that is made from counters and literals; None of another."""
    found = Counters(level).of(x)
    return None if found is None else np.broadcast_to(found, x.aval.shape)


def _is_known(eqn: JaxprEqn) -> bool:
    name, out = eqn.primitive.name, eqn.outvars[0] if len(eqn.outvars) == 1 else None
    dtype = getattr(getattr(out, "aval", None), "dtype", None)
    if not isinstance(out, Var) or not isinstance(dtype, np.dtype) or dtype.kind not in "biufc":
        return False
    if name in _LOGICAL or (name == "select_n" and len(eqn.invars) != 3):
        return dtype.kind == "b"
    return name in ENTRYWISE or name in _OTHERS
