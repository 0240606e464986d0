"""Sums that XLA's library takes for products, or goes on with, are made as others are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.passes.library_sums import NAME
from aerogel.compiler.readers.sums_apart import MOST_BYTES
from aerogel.compiler.readers.weighted_sums import LEAST_SIDE

N = 2 * LEAST_SIDE  # of fewer, others make products of matrices
K = 40  # more than are taken apart
ROWS = MOST_BYTES // 4 + 1  # the fewest that take too many bytes


def normal(seed: int, *shape: int) -> Any:
    """Normal numbers of float32."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How often the pass did something."""
    return sum(d.rule == NAME for d in ag.explain(f, **options)(*args).fired)


def distances(x: Any) -> Any:
    """The squared distances of numbers to each other."""
    return (x[:, None] - x) ** 2


def regression(a: Any, x: Any, b: Any) -> Any:
    """A loss over all pairs, whose gradient adds up weighted rows."""
    return jnp.mean((a[:, None] * x - b[:, None]) ** 2)


def pairs(a: Any, b: Any) -> Any:
    """The differences of all pairs of points."""
    return a[:, None] - b


w, x, X = normal(0, N), normal(1, N), normal(2, N, N)
a, b, v, A = normal(3, 83, K), normal(4, 101, K), normal(5, K), normal(6, 83, 101, K)
Y, y = normal(7, ROWS, 20), normal(8, ROWS)
SLOW: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a kernel": (lambda w, x: (jnp.exp(-distances(x)) * w[:, None]).sum(0), (w, x)),
    "weights in front": (lambda w, X: jnp.mean(w[:, None] * jnp.tanh(X), 0), (w, X)),
    "a quotient": (lambda w, X: jnp.sum(jnp.tanh(X) / (2 + w * w)[:, None], axis=-2), (w, X)),
    "less": (lambda w, X: jnp.sum(-(jnp.tanh(X) * w[:, None]), 0), (w, X)),
    "a mask": (lambda w, X: jnp.sum((w > 0)[:, None] * X**3, 0), (w, X)),
    "bfloat16": (lambda w, X: jnp.sum(jnp.tanh(X) * w[:, None], 0), (w.astype("bfloat16"), X.astype("bfloat16"))),
    "vmap": (jax.vmap(lambda w, X: jnp.sum(jnp.tanh(X) * w[:, None], 0), (None, 0)), (w, normal(3, 2, N, N))),
    "pairs": (lambda a, b, v: jnp.sum(v * jnp.abs(pairs(a, b)), -1), (a, b, v)),
    "pairs by vmap": (
        lambda a, b, v: jax.vmap(lambda p: jax.vmap(lambda q: jnp.sum(v * (p - q) ** 2))(b))(a),
        (a, b, v),
    ),
    "weights of rows": (lambda a, b, A: jnp.sum(jnp.tanh(A) * a[:, None], -1), (a, b, A)),
    "weights of columns": (lambda a, b, A: jnp.sum(jnp.tanh(A) * b, 2), (a, b, A)),
    "an array with three axes": (lambda A, v: jnp.sum(A * v, -1), (A, v)),
    "divided pairs": (lambda a, b, v: jnp.sum(jnp.abs(pairs(a, b)) / (1 + v * v), -1), (a, b, v)),
    "means of rows": (lambda Y: jnp.mean(jnp.abs(Y), -1), (Y,)),
    "norms of rows": (lambda Y, y: jnp.sqrt(jnp.sum((Y - y[:, None]) ** 2, -1)), (Y, y)),
    "deviations": (lambda Y: jnp.std(Y, 1), (Y,)),
    "maxima": (lambda Y: jnp.log(jnp.max(jnp.exp(Y), axis=1)), (Y,)),
    "columns": (lambda Y: jnp.mean(jnp.tanh(Y.T), 0), (Y,)),
    "a loop": (
        lambda w, X: jax.lax.scan(lambda c, _: ((jnp.tanh(X + c) * w[:, None]).sum(0) / N, None), w, None, length=3)[0],
        (w, X),
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_it_fires(name: str) -> None:
    """Whatever the weights stand before, in any place and in loops; the numbers are those of the natural form."""
    f, args = SLOW[name]
    assert fired(f, *args) == 1
    got, want = jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args)
    tolerance = 2e-2 if want.dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(
        np.asarray(got, "float32"), np.asarray(want, "float32"), atol=tolerance * float(jnp.max(jnp.abs(want)))
    )


def row_means(rows: Any) -> Any:
    """Something computed of sums of what is computed."""
    return jnp.exp(-jnp.sum(jnp.abs(rows), -1))


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "not square": (lambda w, X: (jnp.tanh(X) * w[:, None]).sum(0), (normal(0, N + 1), normal(1, N + 1, N))),
    "small": (lambda w, X: (jnp.tanh(X) * w[:, None]).sum(0), (normal(0, 511), normal(1, 511, 511))),
    "along the rows": (lambda w, X: (jnp.tanh(X) * w).sum(1), (w, X)),
    "weights of columns": (lambda w, X: (jnp.tanh(X) * w).sum(0), (w, X)),
    "an array that is there": (lambda w, X: (X * w[:, None]).sum(0), (w, X)),
    "one that others read": (lambda w, X: ((y := jnp.tanh(X)), (y * w[:, None]).sum(0)), (w, X)),
    "over all": (lambda w, X: (jnp.tanh(X) * w[:, None]).sum(), (w, X)),
    "another operation behind": (lambda w, X: (jnp.tanh(X) * w[:, None] + X).sum(0), (w, X)),
    "few pairs": (lambda a, b, v: jnp.sum(v * jnp.abs(pairs(a, b)), -1), (a[:60], b, v)),
    "pairs with a number": (lambda a, b, v: jnp.sum(v[0] * jnp.abs(pairs(a, b)), -1), (a, b, v)),
    "a weight for each pair": (lambda a, b, A: jnp.sum(A * jnp.abs(pairs(a, b)), -1), (a, b, A)),
    "pairs in a divisor": (lambda a, b, v: jnp.sum(v / (1 + jnp.abs(pairs(a, b))), -1), (a, b, v)),
    "few rows": (row_means, (Y[:-1],)),
    "sums alone": (lambda Y: jnp.sum(jnp.abs(Y), -1), (Y,)),
    "of what is stored": (lambda Y: jnp.mean(Y, -1), (Y,)),
    "squares of what is stored": (lambda Y: jnp.mean(Y * Y, -1), (Y,)),
    "what others read": (lambda Y: ((m := jnp.sum(jnp.abs(Y), -1)), jnp.exp(m)), (Y,)),
    "repeated along the rows": (lambda Y: Y / (1 + jnp.sum(jnp.abs(Y), -1, keepdims=True)), (Y,)),
    "a selection": (lambda Y: jnp.where(y > 0, jnp.sum(jnp.abs(Y), -1), 0), (Y,)),
    "rows of integers": (lambda Y: -jnp.sum(jnp.abs(Y), -1), (Y.astype("int32"),)),
    "integers": (lambda w, X: (jnp.abs(X) * w[:, None]).sum(0), (w.astype("int32"), X.astype("int32"))),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left(name: str) -> None:
    """Sums that the library is as fast at stay as they are."""
    f, args = LEFT[name]
    assert fired(f, *args) == 0


def test_a_gradient_over_all_pairs_is_no_such_sum() -> None:
    """Its array is written once for all of its sums, and none of them computes it."""
    f = jax.value_and_grad(regression, (0, 1, 2))
    args = normal(0, N), normal(1, N), normal(2, N)
    assert fired(f, *args) == 0
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * float(jnp.max(jnp.abs(want))))


def test_nothing_in_a_row_is_another_number() -> None:
    """What is added changes no number: inf and nan stay where they are."""
    f = lambda w, X: (jnp.square(X) * w[:, None]).sum(0)  # noqa: E731
    odd = X.at[3, 5].set(jnp.inf).at[4, 6].set(jnp.nan)
    assert fired(f, w, odd) == 1
    got, want = jax.jit(ag.optimize(f))(w, odd), jax.jit(f)(w, odd)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.parametrize("name", ["a kernel", "pairs", "means of rows"])
def test_strict_leaves_the_order_of_sums(name: str) -> None:
    """The library adds up in another order: not under "strict"."""
    f, args = SLOW[name]
    assert fired(f, *args, numerics="strict") == 0


def test_a_kernel_with_a_scale_for_each_coordinate_is_both() -> None:
    """It is no product, and the exponential is no part of the sum."""
    f = lambda a, b, v: jnp.exp(-0.5 * jnp.sum(jnp.exp(v) * pairs(a, b) ** 2, -1))  # noqa: E731
    args = normal(0, 200, K), normal(1, 200, K), 0.1 * v
    assert fired(f, *args) == 2
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args), rtol=1e-4, atol=1e-30)


def half(*values: Any) -> tuple[Any, ...]:
    """The same in bfloat16."""
    return tuple(one.astype("bfloat16") for one in values)


def across(f: Callable[[Any], Any], x: Any, y: Any, w: Any) -> Any:
    """Something computed of weighted sums over the axis in the middle."""
    return jnp.exp(-jnp.sum(f(x[..., None] - y) * w[:, None], 1) / 50)


P, Q, R = normal(0, 200, 50), normal(1, 50, 300), jnp.abs(normal(2, 50))
LONG = normal(1, 50, 700), normal(1, 50, 2000)
WEIGHTED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "in the middle": (lambda *args: across(jnp.abs, *args), (P, Q, R), 2),
    "divided": (lambda x, y, w: 1 / (1 + jnp.sum((x[..., None] - y) ** 2 / w[:, None], 1)), (P, Q, R), 2),
    "of points": (lambda x, y, w: jnp.sqrt(jnp.sum(w * (x[:, None] - y.T) ** 2, -1)), (P, Q, R), 2),
    "of points, bfloat16": (lambda x, y, w: 2 * jnp.sum(w * jnp.abs(x[:, None] - y.T), -1), half(P, Q[:, :300], R), 0),
    "more of them": (lambda x, y, w: 2 * jnp.sum(w * jnp.abs(x[:, None] - y.T), -1), half(P, LONG[0], R), 2),
    "in the middle, bfloat16": (lambda *args: across(jnp.abs, *args), half(P, LONG[0], R), 2),
    "short, bfloat16": (lambda *args: across(jnp.abs, *args), half(normal(0, 500, 50), Q, R), 0),
    "functions": (lambda *args: across(jnp.tanh, *args), (P, Q, R), 0),
    "functions of many": (lambda *args: across(jnp.tanh, *args), (P, LONG[1], R), 2),
    "rows of one length": (lambda Y, w: jnp.exp(-jnp.sum(jnp.abs(Y) * w, -1)), (Y, normal(1, 20)), 0),
    "a weight for each row": (lambda Y, y: jnp.exp(-jnp.sum(jnp.abs(Y) * y[:, None], -1)), (Y, y), 1),
    "a product of matrices": (lambda x, y: 2 * jnp.sum(x[..., None] * y, 1), half(normal(0, 500, 50), Q), 0),
    "a product of computed ones": (
        lambda x, y: jnp.tanh(jnp.sum(jnp.exp(x)[:, None] * y.T, -1)),
        half(normal(0, 500, 50), Q),
        0,
    ),
    "several axes": (lambda A, w: jnp.exp(-jnp.sum(jnp.abs(A) * w, (2, 3))), (normal(0, 200, 200, 5, 8), R[:8]), 0),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted_sums_apart_are_no_products(name: str) -> None:
    """By itself the library would take them for products of matrices: 4 to 6 times as long as they are."""
    f, args, count = WEIGHTED[name]
    assert fired(f, *args) == count
    got, want = (np.asarray(jax.jit(g)(*args), "float32") for g in (ag.optimize(f), f))
    tolerance = 1e-5 if args[0].dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(got, want, atol=tolerance * float(np.max(np.abs(want))))


def test_what_is_stored_of_a_sum_is_counted() -> None:
    """The library goes on with sums whose halves take 128 KiB, as their words would not."""
    f = lambda Y: jnp.sum(jnp.abs(Y), -1).astype("bfloat16")  # noqa: E731
    many = jnp.tile(Y, (2, 1))
    assert fired(f, Y) == 0
    assert fired(f, many) == 1
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(many), jax.jit(f)(many))


def test_a_gradient_reads_what_is_stored() -> None:
    """The differences are there for the derivative: the library sums up their squares as fast as numbers."""
    f = jax.value_and_grad(lambda Y, y: jnp.mean(jnp.sqrt(jnp.mean((Y - y[:, None]) ** 2, -1))), (0, 1))
    assert fired(f, Y, y) == 0


def test_rows_of_doubles() -> None:
    """Half as many rows take the bytes, and the numbers are those of the natural form."""
    with jax.enable_x64(True):
        rows = jnp.asarray(np.random.default_rng(0).standard_normal((ROWS // 2 + 1, 20)))
        assert fired(row_means, rows) == 1
        assert fired(row_means, rows[:-1]) == 0
        np.testing.assert_allclose(jax.jit(ag.optimize(row_means))(rows), jax.jit(row_means)(rows), rtol=1e-12)


def test_a_row_with_nan_stays_alone() -> None:
    """The selection takes every sum, be it inf or nan."""
    odd = Y.at[3, 5].set(jnp.inf).at[4, 6].set(jnp.nan)
    got, want = jax.jit(ag.optimize(row_means))(odd), jax.jit(row_means)(odd)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert got[3] == 0


REPEATED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "alone": (lambda x: jnp.sum(jnp.broadcast_to(x, (5, *x.shape)), (0, 2)), (normal(10, 200, 150),)),
    "a formula": (lambda x: jnp.mean(jnp.exp(jnp.broadcast_to(x, (7, *x.shape))) ** 2, (0, 1)), (normal(10, 60, 90),)),
    "in the middle": (lambda x: jnp.sum(jnp.broadcast_to(x[:, None], (60, 300, 9)) * 3, (1, 2)), (normal(10, 60, 9),)),
    "of all": (lambda x: jnp.sum(jnp.broadcast_to(jnp.sin(x), (5, *x.shape))), (normal(10, 40, 30),)),
    "bfloat16": (
        lambda x: jnp.sum(jnp.broadcast_to(x, (257, *x.shape)), (0, 2)),
        (abs(normal(10, 20, 30)).astype("bfloat16"),),
    ),
    "vmap": (jax.vmap(lambda x: jnp.sum(jnp.broadcast_to(x, (5, *x.shape)))), (normal(10, 8, 20, 30),)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_repeated_is_added_up_once(name: str) -> None:
    """With the right numbers, in every run: XLA's library adds some of it up too often in some."""
    f, args = REPEATED[name]
    assert {d.rule for d in ag.explain(f)(*args).fired} & {NAME, "full-sums"}  # the other one distributes it
    with jax.enable_x64(True):
        want = f(*(jnp.asarray(np.asarray(x, "float64")) for x in args))  # operation by operation
    g = jax.jit(ag.optimize(f))
    for _ in range(30):
        np.testing.assert_allclose(np.asarray(g(*args), "float64"), want, 1e-2 if name == "bfloat16" else 1e-4)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.sum(jnp.broadcast_to(x, (5, *x.shape)), 0),  # along what is repeated alone
        lambda x: jnp.sum(jnp.broadcast_to(x, (5, *x.shape)), (1, 2)),
        lambda x: jnp.sum(x[:, None] * x, (0, 2)),
        lambda x: jnp.max(jnp.broadcast_to(x, (5, *x.shape)), (0, 2)),
    ],
)
def test_other_sums_of_what_is_repeated_stay(f: Callable[..., Any]) -> None:
    """They are fast, and right."""
    assert not any("times its number" in d.reason for d in ag.explain(f)(normal(10, 200, 150)).fired)
