"""What tells equations apart for a function that is given their types and parameters."""

from collections.abc import Hashable
from typing import Any

from ... import _jax
from ..._jax import JaxprEqn, Literal
from ..program import inner_jaxprs
from ..same import literal_key, param_key


class _Hashed:
    """A key whose hash is found once: those of nested tuples are found anew each time."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: Hashable):
        self._key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Hashed) and self._key == other._key)


def key_of(eqn: JaxprEqn) -> Hashable | None:
    """Equal for equations that a function cannot tell apart but by their sites; None if that cannot be told.

    Nothing is kept of equations that hold programs: to compare a thousand loops with each other costs more.
    """
    if inner_jaxprs(eqn):
        return None
    atoms = tuple(literal_key(x) if isinstance(x, Literal) else _type(x) for x in eqn.invars)
    params = tuple((k, param_key(v)) for k, v in sorted(eqn.params.items()))
    key = (atoms, params, tuple(map(_type, eqn.outvars)), eqn.ctx, _jax.trace_key())
    try:
        return _Hashed(key)
    except TypeError:
        return None


def _type(x: Any) -> Hashable:
    return x.aval, bool(getattr(x.aval, "weak_type", False))
