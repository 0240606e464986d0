"""How a dtype of JAX's or NumPy's is written with the dtypes that safetensors has.

Most are the same on both sides. The others are written as something that every reader of safetensors can read, and the
manifest says what they are: small integers as whole bytes, the rarer floats by their bits, complex128 as pairs.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

Bytes = np.dtype(np.uint8)

# https://github.com/huggingface/safetensors, `Dtype` of release 0.8, without those of less than a byte (F4, F6_*).
NAMES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}


@dataclass(frozen=True)
class Encoding:
    """How the entries of one dtype are written.

    Attributes:
        dtype: the dtype itself.
        stored: the name of what stands in the file.
        tail: the shape of what stands there for one entry; empty where entry goes to entry.
        by_bits: whether entries are written by their bits; else by their values.
    """

    dtype: np.dtype
    stored: str
    tail: tuple[int, ...] = ()
    by_bits: bool = True

    def encode(self, array: np.ndarray) -> np.ndarray:
        """What is to be written, of shape `[*array.shape, *tail]`, in C order."""
        array = np.asarray(array, order="C")
        if not self.by_bits:
            return array.astype(NAMES[self.stored])
        if self.tail:
            array = array.astype(self.dtype, copy=False)[..., None]
        elif array.dtype.byteorder != "|":
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return array.view(NAMES[self.stored])

    def decode(self, stored: np.ndarray) -> np.ndarray | None:
        """Undoes `encode`; None if an entry is none of this dtype's."""
        if self.dtype == np.bool_:
            return stored if not stored.size or stored.view(Bytes).max() <= 1 else None
        if not self.by_bits:
            array = stored.astype(self.dtype)
            return array if np.array_equal(array.astype(stored.dtype), stored) else None
        if self.tail:
            return stored.view(self.dtype)[..., 0]
        return stored.view(self.dtype).astype(_native(self.dtype), copy=False)


def _native(dtype: np.dtype) -> np.dtype:
    return dtype.newbyteorder("=")


# What a dtype that stands in a header means in a file without a manifest.
NATIVE = {name: Encoding(_native(dtype), name) for name, dtype in NAMES.items()}
_BY_BITS = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
_BY_VALUE = {"int1": "I8", "int2": "I8", "int4": "I8", "uint1": "U8", "uint2": "U8", "uint4": "U8"}

# By the name of the dtype.
ENCODINGS = {
    **{str(encoding.dtype): encoding for encoding in NATIVE.values()},
    **{name: Encoding(np.dtype(getattr(ml_dtypes, name)), "U8") for name in _BY_BITS},
    **{name: Encoding(np.dtype(getattr(ml_dtypes, name)), to, by_bits=False) for name, to in _BY_VALUE.items()},
    "complex128": Encoding(np.dtype(np.complex128), "F64", (2,)),
}
