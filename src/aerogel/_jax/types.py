"""Types of values: what they are elements of, where they live, and whether two are one for JAX."""

from typing import Any

import jax
import numpy as np
from jax._src import core, dtypes
from jax._src.lax import lax as lax_internal


def same_type(a: Any, b: Any) -> bool:
    """Whether two types are one for JAX: dtype, shape, explicit sharding, memory space, and weakness.

    The mesh of automatic axes does not count: an argument's type names it, what is traced without arguments does not.
    """
    return core.typematch(a, b) and getattr(a, "weak_type", False) == getattr(b, "weak_type", False)


def is_number(dtype: Any) -> bool:
    """Whether elements are numbers: no booleans, no keys or other extended types, no float0."""
    return dtypes.issubdtype(dtype, np.number)


def element_bytes(dtype: Any) -> int:
    """Bytes of one element; of an extended type (a typed key, ...) those of what stands for it."""
    if not isinstance(dtype, dtypes.ExtendedDType):
        return dtype.itemsize
    physical = core.physical_element_aval(dtype)
    return physical.size * physical.dtype.itemsize


def prng_name(aval: Any) -> str | None:
    """The name of the generator of typed PRNG keys ("threefry2x32"); None for other values."""
    dtype = getattr(aval, "dtype", None)
    return dtype._impl.name if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else None


def with_weak_type(x: jax.Array) -> jax.Array:
    """The array as one whose dtype gives way to others, like that of `jnp.asarray(1.0)`: no public function does it."""
    return lax_internal._convert_element_type(x, x.dtype, weak_type=True)


def weak_like(x: Any, aval: Any) -> Any:
    """The array with the weak type, or without it, that `aval` says; they have one dtype."""
    if core.typeof(x).weak_type == aval.weak_type:
        return x
    return lax_internal._convert_element_type(x, aval.dtype, weak_type=aval.weak_type)


def mesh_of(aval: Any) -> Any:
    """The mesh that a value's type names; None if it names none."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return None if mesh is None or mesh.empty else mesh


def explicit_mesh(aval: Any) -> bool:
    """Whether a value carries a sharding in its type, or is per-device inside a shard_map."""
    mesh = mesh_of(aval)
    return mesh is not None and not mesh.are_all_axes_auto


def on_many_devices(aval: Any) -> bool:
    """Whether a value may be spread over devices: its type names a mesh of more than one."""
    mesh = mesh_of(aval)
    return mesh is not None and mesh.size > 1
