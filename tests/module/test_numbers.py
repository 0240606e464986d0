"""NumPy's numbers in fields that are declared as numbers are structure, as Python's own are."""

from typing import Literal

import jax
import numpy as np
import pytest

import aerogel as ag


class Sizes(ag.Module):
    """A field of each declaration, two of them as text."""

    size: int
    rate: "float | None"
    width: int | Literal["scalar"]
    flag: "bool"
    data: float = ag.field(dynamic=True)
    array: jax.Array | int | None = None


def sizes(number: type, real: type) -> Sizes:
    """The same numbers of one library or the other."""
    return Sizes(number(3), real(0.5), number(4), number(1) == 1, real(2.0), np.float32(7))  # type: ignore[arg-type]


def test_numpy_s_numbers_are_those_of_python() -> None:
    """The two are equal and one structure; what is declared as data, or as an array, is a leaf."""
    one, other = sizes(np.int64, np.float64), sizes(int, float)
    assert one == other
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert len(jax.tree.leaves(one)) == 2
    assert repr(one) == "Sizes(size=3, rate=0.5, width=4, flag=True, data=f32[], array=f32[])"
    assert type(one.size) is int


def test_branches_on_sizes_under_jit() -> None:
    """A size from `np.prod` is no traced value."""
    model = sizes(np.int64, np.float64)
    assert jax.jit(lambda model: 1 if model.size == 3 else 2)(model) == 1
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda model: 1 if model.array == 7 else 2)(model)
