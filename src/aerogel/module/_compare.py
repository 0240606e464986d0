"""When two modules are equal, and their hash."""

from typing import Any

import jax
import numpy as np

from .._jax import Tracer
from ._kinds import Kind, kind_of


def are_equal(a: Any, b: Any) -> bool:
    """Whether two modules have one structure and equal leaves.

    Arrays are equal if they are one object, or have one dtype and shape and hold the same values; nan is no value.
    A value that is not known yet, being traced, equals itself only. So the answer is always a bool: JAX compares
    callables when it looks for a compiled function.
    """
    if a is b:
        return True
    leaves, structure = jax.tree.flatten(a)
    others, other_structure = jax.tree.flatten(b)
    return structure == other_structure and all(map(_same, leaves, others))


def hash_of(module: Any) -> int:
    """A hash of structure, shapes and dtypes: equal for equal modules, and computed without reading any array."""
    leaves, structure = jax.tree.flatten(module)
    return hash((structure, tuple(map(_type_of, leaves))))


def _type_of(leaf: Any) -> Any:
    return (leaf.shape, str(leaf.dtype)) if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else type(leaf)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if _type_of(a) != _type_of(b):
        return False
    if kind_of(a) is not Kind.ARRAY or isinstance(a, jax.ShapeDtypeStruct):
        return bool(a == b)
    if isinstance(a, Tracer | jax.Ref) or isinstance(b, Tracer | jax.Ref):
        return False
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))
