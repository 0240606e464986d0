"""What is done to the entries of arrays with short rows is done to long rows, with the same numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler.kernels import long_rows
from aerogel.compiler.passes.short_rows import ShortRows
from aerogel.compiler.rules.once import once
from compiler.loop_patterns import normal

X, Y = normal(0, 32, 32, 28), normal(1, 32, 32, 28)
ROW, WIDE = normal(2, 28), normal(6, 1024, 32)


def optimised(f: Callable[..., Any], reports: list[Any] | None = None, **options: Any) -> Callable[..., Any]:
    """The function with this pass alone."""
    on_report = [].append if reports is None else reports.append
    return ag.optimize(f, passes=(ShortRows(),), rules=(), on_report=on_report, **options)


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How many groups of equations the pass puts in a branch."""
    reports: list[Any] = []
    jax.make_jaxpr(optimised(f, reports, **options))(*args)
    return len(reports[-1].fired)


def assert_same(f: Callable[..., Any], *args: Any, tolerance: float = 1e-5) -> None:
    """Types, weak ones too, and values of the results are those of the function."""
    got, want = optimised(f)(*args), f(*args)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, jax.tree.map(jnp.asarray, want))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=tolerance, atol=tolerance)


GROUPS: dict[str, tuple[int, Callable[..., Any], tuple[Any, ...]]] = {
    "one array": (1, lambda x: 1 / (1 + x * x), (X,)),
    "value and gradient of a sum": (1, jax.value_and_grad(lambda x: jnp.sum(x**2)), (X,)),
    "several results": (1, lambda x, y: (x * y, x > y, (2 * x).astype(jnp.int32)), (X, Y)),
    "a number beside": (1, lambda x, s: (x * s + 1, jnp.full(x.shape, 3.0) * x), (X, np.float32(0.5))),
    "a sum between": (2, lambda x: x - jnp.sum(x * x) / x.size, (X,)),
    "a sum of a result between": (2, lambda x: (lambda y: y - jnp.sum(y * y) / y.size)(jnp.exp(x)), (X,)),
    "what a product reads": (1, lambda x, w: jnp.tanh(jnp.dot(x * 2, w)) + 1, (X, normal(3, 28, 28))),
    "two shapes": (2, lambda x, y: (jnp.exp(x), jnp.exp(y)), (X, normal(4, 1024, 20))),
    "weak types": (1, lambda x: jnp.where(x > 0, 1.0, 2.0), (X,)),
    "half precision": (1, lambda x: x * 2 + 1, (X.astype(jnp.bfloat16),)),
    "integers": (1, lambda x: x * 2 + 1, ((8 * X).astype(np.int32),)),
    "with a derivative of its own": (1, lambda x: jax.nn.softplus(x) * 2, (X,)),
    "under vmap": (1, jax.vmap(lambda x: jnp.sin(x) * 2), (X,)),
    "in a loop": (1, lambda x: lax.scan(lambda c, _: (c * 0.5 + 1, None), x, None, length=3)[0], (X,)),
    "in a step alone": (
        1,
        lambda x: lax.scan(lambda c, k: (c + jnp.sum(1 / (1 + k * x * x)), None), 0.0, jnp.arange(3.0))[0],
        (WIDE,),
    ),
    "in a branch": (1, lambda x: lax.cond(jnp.sum(x[0, 0]) > 0, lambda x: x * 2, lambda x: x, x), (X,)),
}


@pytest.mark.parametrize("name", GROUPS)
def test_fires(name: str) -> None:
    """On each group of such work once, wherever it stands; types and results are the same."""
    groups, f, args = GROUPS[name]
    assert fired(f, *args) == groups
    assert_same(f, *args)


NEAR_MISSES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "long rows": (lambda x: x * 2, (normal(0, 1024, 64),)),
    "eight entries": (lambda x: x * 2, (normal(0, 4096, 8),)),
    "few entries": (lambda x: x * 2, (normal(0, 512, 28),)),
    "a row for all": (lambda x, row: x * 2 + row, (X, ROW)),
    "sums of rows": (lambda x: jnp.sum(x * 2, -1), (X,)),
    "a sum": (lambda x: jnp.sum(x), (X,)),
    "constants": (lambda: jnp.full(X.shape, 2.0) * 3, ()),
    "a carry": (lambda x: lax.scan(lambda c, _: (c * 0.5 + 1, None), x, None, length=3)[0], (WIDE,)),
    "what a loop stacks": (lambda x: lax.scan(lambda c, k: (c, x * k + 1), 0.0, jnp.arange(3.0))[1], (WIDE,)),
    "a carry of a branch": (
        lambda x: lax.fori_loop(0, 3, lambda i, c: lax.cond(i > 1, lambda c: c * 0.5 + 1, lambda c: c, c), x),
        (WIDE,),
    ),
    "rows that are looked up": (lambda x, i: x[i] * 2, (normal(0, 1024, 28), np.arange(1024)[::-1])),
    "what has XLA store a value": (
        lambda x, w: once(jnp.einsum("...i,ij", x, w)) @ w,
        (normal(0, 64, 10, 40), normal(1, 40, 40)),
    ),
    "what a product makes": (lambda x, w: jnp.tanh(x @ w) @ w, (X, normal(3, 28, 28))),
    "what a loss reads of one": (lambda x, y, w: jnp.sum((x @ w - y) ** 2), (X, Y, normal(3, 28, 28))),
    "a scatter": (lambda x, i: x + jnp.zeros(x.shape).at[i].add(x), (normal(0, 1024, 28), np.arange(1024)[::-1])),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What XLA makes good loops of, and what it would no longer compute together with its neighbours."""
    f, args = NEAR_MISSES[name]
    assert fired(f, *args) == 0


def branches(f: Callable[..., Any], *args: Any) -> list[Any]:
    """The branches that are written."""
    return [eqn for eqn in jax.make_jaxpr(optimised(f))(*args).jaxpr.eqns if eqn.primitive.name == "cond"]


def test_spread_numbers_are_not_stored() -> None:
    """Zeros that are read before and behind a sum are made in each branch, and not handed from one to the other."""

    def f(x: Any) -> Any:
        zeros, y = jnp.zeros(x.shape), x * x
        return jnp.where(y > 2, x, zeros), jnp.where(jnp.tanh(y - jnp.sum(y) / y.size) > 0.5, x, zeros)

    found = branches(f, X)
    assert len(found) == 2
    assert not [x for eqn in found for x in eqn.invars if x.aval.shape and x.aval.size != X.size]
    assert_same(f, X)


def test_masks_are_made_where_they_are_read() -> None:
    """The mask of a rectifier's gradient is made of the value that is kept, in the branch that uses it."""

    def loss(x: Any) -> Any:
        y = jax.nn.relu(jnp.cumsum(x, 0))
        return jnp.sum(jnp.tanh(jnp.cumsum(2 * y, 0)))

    gradient, args = jax.grad(loss), (X,)
    found = branches(gradient, *args)
    assert "gt" in {e.primitive.name for eqn in found for e in eqn.params["branches"][1].jaxpr.eqns}
    assert not [v for eqn in found for v in eqn.outvars if v.aval.dtype == bool]
    assert_same(gradient, *args, tolerance=1e-3)


def test_sums_keep_their_order_where_that_is_asked_for() -> None:
    """Under strict numerics a sum stays outside, so that what it reads is left alone, and the rest fires."""
    f = jax.value_and_grad(lambda x: jnp.sum(x**2))
    assert fired(f, X) == 1
    assert fired(f, X, numerics="strict") == 0
    assert fired(lambda x: 2 * x, X, numerics="strict") == 1


def test_xla_makes_one_loop_of_it() -> None:
    """The compiled program divides along long rows; that of plain JAX, and of a reshape, along all three axes."""

    def f(x: Any) -> Any:
        return 1 / (1 + x * x)

    def divided(g: Callable[..., Any]) -> set[str]:
        text = jax.jit(g).lower(X).compile().as_text()
        assert text is not None
        return {line.split(" = ")[1].split("{")[0] for line in text.splitlines() if " divide(" in line}

    assert divided(f) == divided(lambda x: f(x.reshape(-1)).reshape(x.shape)) == {"f32[32,32,28]"}
    assert divided(optimised(f)) == {"f32[28672]"}


def test_halves_that_a_product_reads_stay() -> None:
    """XLA makes them of float32 for it; of float32 itself nothing is converted."""

    def f(x: Any, w: Any) -> Any:
        return (jnp.exp(x) * x) @ w

    x, w = X, normal(5, X.shape[-1], 40)
    assert fired(f, x, w) == 1
    assert fired(f, x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)) == 0


def test_long_rows_are_shared_as_a_whole() -> None:
    """An odd number of entries in one row was four times slower than short rows: two threads' parts were not alike."""
    for rows, long in (
        ((1024, 28), (1, 28672)),
        ((3971, 33), (19, 6897)),
        ((9002, 13), (1, 117_026)),
        ((4001, 31), None),
    ):
        assert long_rows.rows_of(rows) == long
    refused = {(4001, 31): "4,001 rows"}
    for shape, reason in refused.items():
        decision = ag.explain(lambda x: 1 / (1 + x * x))(normal(0, *shape)).refused[0]
        assert decision.rule == "short-rows"
        assert reason in decision.reason


def test_rows_of_whole_vectors_stay_beside_a_convolution() -> None:
    """Its results lie in another order; rows of 28 still gain there."""

    def f(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(jnp.tanh(x), w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        return jnp.tanh(y) + y * y

    w = normal(1, 4, 4, 3, 3)
    assert fired(lambda x: jnp.tanh(x) + x * x, normal(0, 8, 4, 32, 32)) == 1
    assert fired(f, normal(0, 8, 4, 32, 32), w) == 0
    assert fired(f, normal(0, 8, 4, 28, 28), w) == 2
    assert_same(f, normal(0, 8, 4, 28, 28), w)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9))
def test_any_order_of_work_keeps_its_meaning(steps: list[tuple[int, int, int]]) -> None:
    """Work on entries between sums, products and reversals, of two shapes, gives the same numbers."""

    def f(x: Any, y: Any) -> Any:
        values = [x, y]
        for kind, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            b = b if a.shape == b.shape else jnp.sum(b) / b.size
            values.append(
                (
                    lambda a, b: a * 0.5 + b,
                    lambda a, b: jnp.where(a > b, a, 0.25),
                    lambda a, b: a - jnp.sum(a) / a.size,
                    lambda a, b: a[::-1],
                    lambda a, b: jnp.tanh(a),
                    lambda a, b: a - jnp.max(a, -1, keepdims=True),
                    lambda a, b: lax.sort(a),
                )[kind](a, b)
            )
        return values[2:]

    assert_same(f, X[:, :20], normal(5, 600, 30), tolerance=1e-4)


@pytest.mark.parametrize("shape", [(128, 1, 28, 28), (64, 1, 1, 20, 28)])
def test_axes_of_one_entry_cost_no_copy(shape: tuple[int, ...]) -> None:
    """XLA orders such axes anew where a result had two axes in the branch, and then copies it."""
    f, x = jax.value_and_grad(lambda x: jnp.sum(x**2)), normal(0, *shape)

    def temporary(f: Callable[..., Any]) -> int:
        return jax.jit(f).lower(x).compile().memory_analysis().temp_size_in_bytes

    assert fired(f, x) == 1
    assert temporary(optimised(f)) <= temporary(f) + 4096
    assert_same(f, x)
