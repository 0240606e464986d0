"""Bytes and elements of values, from their types alone."""

import math
from typing import Any

import jax
import numpy as np

from aerogel import _jax

# The number that stands for a dimension whose size is unknown (`jax.export` with symbolic shapes): large enough that
# nothing looks free, small enough that nothing looks like the whole memory.
ASSUMED_DIMENSION = 128

# Types that XLA packs several to a byte; NumPy says one byte each.
_PACKED_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}

_bits_by_dtype: dict[Any, int] = {jax.dtypes.float0: 0}


def elements(aval: Any) -> int:
    """Number of elements of an array, key array or ref; 0 for a token or anything else without a shape."""
    shape = getattr(aval, "shape", None)
    if shape is None:
        return 0
    count = math.prod(shape)
    if type(count) is not int:
        count = math.prod(int(d) if isinstance(d, (int, np.integer)) else ASSUMED_DIMENSION for d in shape)
    return count


def nbytes(aval: Any) -> int:
    """Bytes that a value of this type takes on the device.

    A typed key counts its key data (8 bytes for threefry), 4-bit types half a byte, float0 and tokens nothing, a ref
    what it refers to, a symbolic dimension `ASSUMED_DIMENSION`.

    >>> nbytes(jax.typeof(np.zeros((3, 5), np.float32)))
    60
    """
    if not hasattr(aval, "dtype"):
        return 0
    bits = _bits_by_dtype.get(aval.dtype)
    if bits is None:
        width: int = 8 * _jax.element_bytes(aval.dtype)
        bits = _bits_by_dtype[aval.dtype] = _PACKED_BITS.get(aval.dtype.name, width)
    return (elements(aval) * bits + 7) // 8
