"""What a value in a module is: data, a node of the tree, or structure."""

import types
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Tracer


class Kind(Enum):
    """The ways in which a module holds a value."""

    __hash__ = object.__hash__  # that of `Enum` is Python code, and ways are looked up by kind

    ARRAY = "a leaf"
    NODE = "a module, a bound method or a frozen container: a node of ours"
    LIST = "a list, which is frozen on the way in"
    DICT = "a dict, likewise"
    SET = "a set, likewise"
    TUPLE = "a tuple"
    RECORD = "a named tuple"
    METHOD = "a bound method"
    FOREIGN = "a pytree node of another library"
    ATOM = "structure that cannot change and can be hashed"
    OTHER = "structure that may turn out not to be hashable"


_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis)),
    *(type, types.FunctionType, types.BuiltinFunctionType, np.dtype),
    *(type(jnp.tanh), jax.custom_jvp, jax.custom_vjp),  # what `jax.jit` makes, which activations are, and its likes
)

# Kinds that the exact type tells; `Module` adds each of its subclasses. np.ndarray is missing: there the dtype tells.
KINDS: dict[type, Kind] = dict.fromkeys(_ATOMS, Kind.ATOM) | {
    list: Kind.LIST,
    dict: Kind.DICT,
    set: Kind.SET,
    tuple: Kind.TUPLE,
    types.MethodType: Kind.METHOD,
    jax.ShapeDtypeStruct: Kind.ARRAY,
}


def kind_of(value: Any) -> Kind:
    """How a module holds `value`. Asked when a module is built, never when it is flattened."""
    kind = KINDS.get(type(value))
    return _look_at(value) if kind is None else kind


# Classes whose values are leaves to JAX, and no arrays: all that can still become of them is nodes, by registration.
_LEAVES: set[type] = set()


def _look_at(value: Any) -> Kind:
    cls = type(value)
    if cls in _LEAVES and jax.tree_util.all_leaves((value,)):
        return Kind.OTHER
    if isinstance(value, (np.ndarray, np.generic)):
        return Kind.ARRAY if _is_numeric(value.dtype) else Kind.OTHER
    if isinstance(value, jax.Array | Tracer | jax.Ref):
        return KINDS.setdefault(cls, Kind.ARRAY)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return KINDS.setdefault(cls, Kind.RECORD)
    # Not remembered when it is a leaf: its class may still be registered. JAX knows two dicts of `collections`.
    if not jax.tree_util.all_leaves((value,)):
        return KINDS.setdefault(cls, Kind.DICT if cls.__module__ == "collections" else Kind.FOREIGN)
    for base, kind in ((tuple, Kind.TUPLE), (list, Kind.LIST), (dict, Kind.DICT), (set | frozenset, Kind.SET)):
        if isinstance(value, base):
            return kind
    if isinstance(value, (type, np.dtype, Enum)) and cls.__hash__ is not None:
        return KINDS.setdefault(cls, Kind.ATOM)
    _LEAVES.add(cls)
    return Kind.OTHER


def _is_numeric(dtype: np.dtype) -> bool:
    # The small floats and integers of ml_dtypes are "V" too, but not built from fields or bytes.
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.isbuiltin == 2)
