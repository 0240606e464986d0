"""The canonical form: scatters of one entry a row are comparisons, transposed products are exchanged ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler.fusion.canonical import canonical
from aerogel.compiler.judging.check import check_program
from aerogel.compiler.normalize import normalize
from compiler.loop_patterns import normal

MODES = ("fill", "clip", "promise_in_bounds")


def forms(f: Any, *args: Any) -> tuple[list[str], list[Any], list[Any]]:
    """The primitives of the canonical form, its results, and those of the program as it was."""
    traced: Any = jax.make_jaxpr(f)(*args)
    before = normalize(traced)[0]
    after = ClosedJaxpr(canonical(before.jaxpr), before.consts)
    check_program(after, before)
    names = [eqn.primitive.name for eqn in after.jaxpr.eqns]
    assert canonical(after.jaxpr) is after.jaxpr
    return names, evaluate(after, list(args)), evaluate(before, list(args))


@settings(max_examples=30, deadline=None)
@given(
    axis=st.integers(0, 2),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(["float32", "bfloat16", "complex64"]),
    seed=st.integers(0, 99),
)
def test_the_gradient_of_picking_one_entry(axis: int, mode: str, dtype: str, seed: int) -> None:
    """Entries, sums of rows and negated sums are those of the scatter; indices below zero and out of bounds too."""
    shape = (3, 4, 5)
    low, high = (0, shape[axis]) if mode == "promise_in_bounds" else (-shape[axis] - 2, shape[axis] + 2)
    rows = tuple(1 if d == axis else n for d, n in enumerate(shape))
    index = np.random.default_rng(seed).integers(low, high, rows).astype(np.int32)
    x, weight = jnp.asarray(normal(seed, *shape), dtype), jnp.asarray(normal(seed + 1, *rows), dtype)

    def f(x: Any, index: Any, weight: Any) -> Any:
        _, back = jax.vjp(lambda x: jnp.take_along_axis(x, index, axis, mode=mode), x)
        (whole,) = back(weight)
        return whole, lax.reduce_sum(whole, [axis]), lax.reduce_sum(-whole, [axis])

    names, got, want = forms(f, x, index, weight)
    assert not {"scatter-add", "reduce_sum"} & set(names)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.complex64), np.asarray(b, np.complex64))


def test_several_entries_a_row_stay_a_scatter() -> None:
    """Two entries of a row may be the same one: their gradients add up."""
    index = np.array([[0, 0], [1, 2]], np.int32)

    def f(x: Any) -> Any:
        return jax.grad(lambda x: jnp.take_along_axis(x, index, 1).sum())(x)

    names, (got,), (want,) = forms(f, normal(0, 2, 5))
    assert "scatter-add" in names
    np.testing.assert_array_equal(got, want)


@settings(max_examples=20, deadline=None)
@given(batch=st.integers(0, 2), left=st.integers(0, 2), right=st.integers(0, 2), contract=st.integers(0, 2))
def test_a_transposed_product_is_an_exchanged_one(batch: int, left: int, right: int, contract: int) -> None:
    """Whatever the numbers of dimensions, the result is that of the transpose, and no transpose is left."""
    sizes = {"batch": (2, 3)[:batch], "left": (4, 5)[:left], "right": (6, 7)[:right], "contract": (8, 9)[:contract]}
    a = normal(0, *sizes["batch"], *sizes["left"], *sizes["contract"])
    b = normal(1, *sizes["contract"], *sizes["batch"], *sizes["right"])
    numbers = (
        (tuple(range(batch + left, a.ndim)), tuple(range(contract))),
        (tuple(range(batch)), tuple(range(contract, contract + batch))),
    )
    order = (*range(batch), *range(batch + left, batch + left + right), *range(batch, batch + left))

    def f(a: Any, b: Any) -> Any:
        return lax.transpose(lax.dot_general(a, b, numbers), order)

    names, (got,), (want,) = forms(f, a, b)
    assert names.count("transpose") == 0
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_another_order_stays_a_transpose() -> None:
    """Only what exchanging the operands does is absorbed here; `Orientation` weighs the rest."""

    def f(a: Any, b: Any) -> Any:
        return jnp.transpose(jnp.einsum("bik,bkj->bij", a, b), (1, 0, 2))

    assert "transpose" in forms(f, normal(0, 2, 3, 4), normal(1, 2, 4, 5))[0]
