"""Sums of matrices that are known to be diagonal read the diagonal alone, and no others do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from rules.rules_under_test import fired, normal, refusals

RULE = ag.rules.diagonal_sum

CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "trace": (lambda x: jnp.trace(x) ** 2, normal(0, 37, 37)),
    "of what is computed": (lambda x: jnp.trace(jnp.tanh(x) + 1), normal(1, 33, 33)),
    "vmap": (jax.vmap(jnp.trace), normal(2, 120, 3, 3)),
    "a stack, all of it": (lambda x: jnp.where(jnp.eye(21, dtype=bool), x, 0).sum(), normal(3, 5, 21, 21)),
    "columns": (lambda x: jnp.where(jnp.eye(40, dtype=bool), x, 0).sum(0), normal(4, 40, 40)),
    "rows of a stack": (lambda x: jnp.where(jnp.eye(40, dtype=bool), x, 0).sum((0, 2)), normal(5, 3, 40, 40)),
    "a factor": (lambda x: (x * jnp.eye(35, dtype=x.dtype)).sum(), normal(6, 35, 35)),
    "a loop": (
        lambda x: lax.scan(lambda c, _: (c * 0.5 + jnp.trace(c), None), x, None, length=4)[0],
        normal(7, 34, 34),
    ),
    "a value and its gradient": (jax.value_and_grad(lambda x: jnp.sin(jnp.trace(x))), normal(8, 36, 36)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str, dtype: str) -> None:
    """In every spelling, in loops, in stacks, beside a gradient; the results agree."""
    f, x = CASES[name]
    if dtype == "int32" and name in ("a value and its gradient", "a loop"):
        return
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(10 * x if dtype == "int32" else x, dtype)
        assert fired(f, RULE, x) >= 1
        for got, want in zip(jax.tree.leaves(jax.jit(ag.optimize(f))(x)), jax.tree.leaves(f(x)), strict=True):
            assert got.dtype == want.dtype
            tight = {"float64": 1e-12, "bfloat16": 5e-2}.get(dtype, 1e-5)
            np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), tight, 10 * tight)


def test_what_a_trace_does_not_read_may_be_anything() -> None:
    """Nan and infinity beside the diagonal stay out of it; on it they are the trace."""
    x = normal(0, 40, 40)
    ours = jax.jit(ag.optimize(jnp.trace, rules=[RULE], passes=()))
    np.testing.assert_allclose(ours(x.at[0, 1].set(np.nan).at[7, 3].set(np.inf)), jnp.trace(x), rtol=1e-5)
    assert np.isnan(ours(x.at[5, 5].set(np.nan)))
    assert ours(x.at[39, 39].set(-np.inf)) == -np.inf


def test_gradients_through_it() -> None:
    """`optimize` inside of `grad`, twice."""
    x = normal(0, 33, 33)
    inside = ag.optimize(lambda x: jnp.trace(x * x * x), rules=[RULE], passes=())
    np.testing.assert_allclose(jax.grad(inside)(x), 3 * x * x * jnp.eye(33), rtol=1e-5)
    twice = jax.grad(lambda x: (jax.grad(inside)(x) ** 2).sum())
    np.testing.assert_allclose(twice(x), 36 * x**3 * jnp.eye(33), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "x", "reason"),
    [
        (lambda x: jnp.trace(x, 1), normal(0, 40, 40), "not known to be diagonal"),
        (lambda x: jnp.where(jnp.eye(40, dtype=bool), x, 1).sum(), normal(0, 40, 40), "not known to be diagonal"),
        (lambda x: jnp.where(jnp.eye(40, dtype=bool), 0, x).sum(), normal(0, 40, 40), "not known to be diagonal"),
        (lambda x: jnp.tril(x).sum(), normal(0, 40, 40), "not known to be diagonal"),
        (jnp.trace, normal(0, 40, 50), "no square matrices"),
        (jnp.trace, normal(0, 31, 31), "fewer than 1024 entries"),
        (jnp.trace, normal(0, 0, 0), "fewer than 1024 entries"),
        (lambda x: jnp.where(jnp.eye(40, dtype=bool), x, 0).sum(0), normal(0, 3, 40, 40), "not over rows or columns"),
    ],
)
def test_near_misses(f: Callable[..., Any], x: Any, reason: str) -> None:
    """Other masks, other axes, little to sum up."""
    found = refusals(f, RULE, x)
    assert any(reason in one for one in found)


def test_strict_numerics_sum_in_order() -> None:
    """The order of a sum is another."""
    x = normal(0, 40, 40)
    assert not fired(jnp.trace, RULE, x, numerics="strict")
