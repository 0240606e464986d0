"""Trees to be saved, and what it means that one came back."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from aerogel.module.files._encoding import ENCODINGS

# Those that JAX can hold on a CPU.
JAX_DTYPES = sorted(name for name in ENCODINGS if not name.startswith(("float6", "int1", "uint1")) or name[-1] == "6")


@contextmanager
def new_file() -> Iterator[Path]:
    """A name in a folder of its own, which must be empty but for it in the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved.safetensors"
        yield path
        assert os.listdir(folder) in ([], [path.name]), "a temporary file was left"


def bits(array: Any) -> bytes:
    """The values of an array, key or number, NaN and -0.0 included."""
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).tobytes()


def check_same(one: Any, other: Any) -> None:
    """Both are the same to a program and to a user: structure, kinds of leaves, types, values, weak types."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert isinstance(a, jax.Array) == isinstance(b, jax.Array)
        assert isinstance(a, jax.Array) or type(a) is type(b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
        assert np.shape(a) == np.shape(b)
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)
        if callable(a) or isinstance(a, str):
            assert a == b
        else:
            assert bits(a) == bits(b)


def zeros_like(tree: Any) -> Any:
    """A tree of the same leaves with other values."""

    def zero(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.zeros_like(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        if isinstance(leaf, np.ndarray):
            return np.zeros_like(leaf)
        if isinstance(leaf, jax.Array):
            return jnp.zeros_like(leaf)
        return type(leaf)(0) if isinstance(leaf, bool | int | float | complex | np.generic) else leaf

    return jax.tree.map(zero, tree)


def real(model: Any) -> Any:
    """A drawn model in which arrays stand for its shapes."""

    def fill(leaf: Any) -> Any:
        return jnp.ones(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.tree.map(fill, model)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays of NumPy and JAX of every dtype, with any bits that the dtype has; keys."""
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0, 2), (2, 1, 2)]))
    dtype = ENCODINGS[draw(st.sampled_from(sorted(ENCODINGS)))].dtype
    count = int(np.prod(shape))
    if ENCODINGS[str(dtype)].by_bits and dtype != np.bool_:
        # All-ones are a NaN in every float; no others: NumPy and JAX may change the bits of a signalling one.
        size = count * dtype.itemsize
        raw = draw(st.binary(min_size=size, max_size=size) if dtype.kind in "iu" else st.just(b"\xff" * size))
        array = np.frombuffer(raw, dtype).reshape(shape)
    else:
        array = (np.arange(count) % 2).reshape(shape).astype(dtype)
    if str(dtype) in JAX_DTYPES and jax.dtypes.canonicalize_dtype(dtype) == dtype and draw(st.booleans()):
        return jnp.asarray(array)
    return array


numbers = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.complex_numbers(),
    st.sampled_from([np.float32(2), np.int8(3), np.bool_(True)]),
)
keys = st.builds(
    lambda seed, impl, shape: jax.random.split(jax.random.key(seed, impl=impl), shape),
    st.integers(0, 9),
    st.sampled_from(["threefry2x32", "rbg", "unsafe_rbg"]),
    st.sampled_from([(), (2,), (0,)]),
)
others = st.sampled_from([None, jax.nn.relu, "text"])
# Names that look like other paths, or like parts of JSON.
texts = st.one_of(
    st.text(max_size=4), st.sampled_from(["a.b", "a", "b", "['a']", "a]['b", '"', "\\", "a[0]", "0", "ü/é"])
)


def trees() -> st.SearchStrategy[Any]:
    """Plain pytrees."""
    return st.recursive(
        st.one_of(arrays(), numbers, keys, others),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(texts, inner, max_size=3),
            st.dictionaries(st.integers(0, 2), inner, max_size=2),
        ),
        max_leaves=6,
    )
