"""What a leaf is, whether it stands in a tree or in a file, and how it is written."""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from .._display import show_type
from .._kinds import Kind, kind_of
from ._encoding import ENCODINGS, Encoding
from ._safetensors import Stored

# Python's numbers, which are leaves of plain trees, by what they are written as.
NUMBERS: dict[str, type] = {"bool": bool, "int": int, "float": float, "complex": complex}
_AS = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}


@dataclass(frozen=True)
class Spec:
    """What a leaf is.

    Attributes:
        kind: an array, keys of random numbers, or a number of Python's.
        dtype: the name of its dtype; of the keys' implementation; of the number's class.
        shape: its shape, without that of a key's own data.
    """

    kind: Literal["array", "key", "number"]
    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == "number":
            return f"{self.dtype} of Python's"
        return show_type(f"key<{self.dtype}>" if self.kind == "key" else self.dtype, self.shape)

    @property
    def encoding(self) -> Encoding:
        """How its data are written."""
        if self.kind == "key":
            return ENCODINGS["uint32"]
        return ENCODINGS[_AS[self.dtype] if self.kind == "number" else self.dtype]

    def is_stored_as(self, stored: Stored) -> bool:
        """Whether `stored` can be the data of such a leaf."""
        rest = stored.shape[len(self.shape) :]
        fits = len(rest) > 0 if self.kind == "key" else rest == self.encoding.tail
        return fits and stored.shape[: len(self.shape)] == self.shape and stored.dtype == self.encoding.stored


def spec_of(leaf: Any) -> Spec | None:
    """What a leaf is; None for structure, which is not written: functions, texts, objects.

    For a shape it is what JAX would make of it, so `f32` for `f64` as long as JAX's x64 is off.
    """
    if type(leaf) in NUMBERS.values():
        return Spec("number", type(leaf).__name__)
    if kind_of(leaf) is not Kind.ARRAY:
        return None
    if is_key(leaf):
        return Spec("key", implementation(leaf), tuple(leaf.shape))
    dtype = leaf.dtype
    if isinstance(leaf, jax.ShapeDtypeStruct):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return Spec("array", str(np.dtype(dtype).newbyteorder("=")), tuple(leaf.shape))


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed keys of random numbers."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def implementation(keys: Any) -> str:
    """The name of the keys' implementation. Only a value can be asked for it; a shape becomes one under a trace."""
    found: list[str] = []

    def ask(value: Any) -> None:
        found.append(str(jax.random.key_impl(value)))

    jax.eval_shape(ask, jax.ShapeDtypeStruct(keys.shape, keys.dtype))
    return found[0]
