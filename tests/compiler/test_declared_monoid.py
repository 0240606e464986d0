"""A reduction of a user's, with a monoid of theirs: loops take it in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel._jax import Primitive, ShapedArray
from aerogel.compiler import declare

lengths = Primitive("length_of_all")


def _length(x: Any, *, axes: tuple[int, ...]) -> Any:
    return jnp.sqrt(jnp.sum(x * x, axes))


def _type(x: Any, *, axes: tuple[int, ...]) -> Any:
    return ShapedArray([n for d, n in enumerate(x.shape) if d not in axes], x.dtype)


lengths.def_impl(_length)
lengths.def_abstract_eval(_type)
_jax.mlir.register_lowering(lengths, _jax.mlir.lower_fun(_length, multiple_results=False))  # pyright: ignore[reportArgumentType]


def trajectory(x: Any) -> Any:
    """A loop whose output is reduced by a primitive that nobody knows."""
    _, xs = lax.scan(lambda c, _: (0.9 * c, c), x, None, length=50)
    return lengths.bind(xs, axes=(0, 1))


def test_loops_take_in_what_a_user_declares() -> None:
    """The stacked output need not exist; the numbers agree; where sums may not be reordered, it stays."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=300), "float32")
    assert [d.reason for d in ag.explain(trajectory)(x).refused] == ["unknown primitive `length_of_all`"]
    declare(lengths, reduces="axes", monoid=(jnp.hypot, 0))
    report = ag.explain(trajectory)(x)
    assert [d.rule for d in report.fired] == ["loop-fusion"]
    assert report.fired[0].exactness == "reassociates"
    np.testing.assert_allclose(jax.jit(ag.optimize(trajectory))(x), trajectory(x), 1e-5)
    assert {d.rule for d in ag.explain(trajectory, numerics="strict")(x).fired} <= {"loop-kernel"}


def test_a_pair_is_for_one_result() -> None:
    """Of several results, two arrays are not all that is combined."""
    several = Primitive("several_results")
    several.multiple_results = True
    with pytest.raises(ValueError, match="give `monoid` as a `Monoid`"):
        declare(several, reduces="axes", monoid=(jnp.add, 0))
