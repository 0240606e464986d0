"""Products with the transpose of a Cholesky factor, in gradients, are products of few columns."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.stats import multivariate_normal

import aerogel as ag
from aerogel.compiler.passes.factor_products import FEWEST, NAME

N = 40
RNG = np.random.default_rng(0)
HALF = RNG.normal(size=(N, N))
K = HALF @ HALF.T / N + np.eye(N)
Y, EPS = RNG.normal(size=N), RNG.normal(size=(N, 3))


def likelihood(K: Any, y: Any) -> Any:
    """The log density of a Gaussian, but for a constant."""
    L = jnp.linalg.cholesky(K)
    white = solve_triangular(L, y, lower=True)
    return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(L)))


def determinant(K: Any, y: Any) -> Any:
    """The logarithm of one, and no solve."""
    return jnp.sum(jnp.log(jnp.diag(jnp.linalg.cholesky(K)))) + 0 * y.sum()


def quadratic(K: Any, y: Any) -> Any:
    """Two solves, one of them with the transpose."""
    return jnp.sin(y @ cho_solve((jnp.linalg.cholesky(K), True), y))


def several(K: Any, y: Any) -> Any:
    """A solve for several columns, which are not squared."""
    L = jnp.linalg.cholesky(K)
    columns = jnp.stack([y, jnp.sin(y), y * y], 1)
    return jnp.sum(jnp.tanh(solve_triangular(L, columns, lower=True)))


def rows(K: Any, y: Any) -> Any:
    """A solve for rows."""
    L = jnp.linalg.cholesky(K)
    given = jnp.stack([y, jnp.sin(y)])
    solved = lax.linalg.triangular_solve(L, given, lower=True, transpose_a=True)
    return jnp.sum(jnp.tanh(solved) @ jnp.cos(y))


def sampled_rows(K: Any, y: Any) -> Any:
    """Products of rows with the factor's transpose."""
    return jnp.sum(jnp.sin(EPS.T.astype(y.dtype) @ jnp.linalg.cholesky(K).T) * y)


def samples(K: Any, y: Any) -> Any:
    """Products with the factor itself."""
    return jnp.sum(jnp.sin(jnp.linalg.cholesky(K) @ EPS.astype(y.dtype)) * y[:, None])


def library(K: Any, y: Any) -> Any:
    """JAX's own density."""
    return multivariate_normal.logpdf(y, jnp.zeros_like(y), K)


FIRES: tuple[Callable[..., Any], ...] = (
    likelihood,
    determinant,
    quadratic,
    several,
    rows,
    sampled_rows,
    samples,
    library,
)


def reasons(f: Callable[..., Any], *args: Any, fired: bool = True, **options: Any) -> list[str]:
    """What the report says of it."""
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(f, on_report=reports.append, **options))(*args)
    return [d.reason for d in (reports[-1].fired if fired else reports[-1].refused) if d.rule == NAME]


def close(got: Any, want: Any, tolerance: float) -> None:
    """The same, up to a part of the largest entry."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("f", FIRES)
def test_fires_and_agrees(f: Callable[..., Any], dtype: str) -> None:
    """Value and gradients are those of plain JAX, in both types."""
    with jax.enable_x64(True):
        args = K.astype(dtype), Y.astype(dtype)
        g = jax.value_and_grad(f, (0, 1))
        assert reasons(g, *args) == ["what was solved with the factor is multiplied with it again"]
        close(jax.jit(ag.optimize(g))(*args), jax.jit(g)(*args), 1e-4 if dtype == "float32" else 1e-12)


def squares(f: Callable[..., Any]) -> int:
    """How many products of two matrices of N rows and columns the compiled program has."""
    text = str(jax.jit(f).lower(K, Y).as_text())
    whole = f"tensor<{N}x{N}xf32>"
    return sum(line.count(whole) == 3 for line in text.splitlines() if "dot_general" in line)


def test_the_product_of_two_matrices_is_gone() -> None:
    """JAX makes one of two square matrices; the optimised gradient none."""
    assert squares(jax.grad(likelihood)) == 1
    assert squares(ag.optimize(jax.grad(likelihood))) == 0


def in_scan(K: Any, y: Any) -> Any:
    """A gradient in each step of a loop."""

    def step(scale: Any, _: Any) -> Any:
        g = jax.grad(likelihood)(K * scale, y)
        return scale + 0.01 * jnp.tanh(jnp.sum(g)), jnp.sum(g)

    return lax.scan(step, jnp.ones((), y.dtype), None, length=3)


def test_in_loops() -> None:
    """Where the factor is made in a step."""
    with jax.enable_x64(True):
        assert len(reasons(in_scan, K, Y)) == 1
        close(jax.jit(ag.optimize(in_scan))(K, Y), jax.jit(in_scan)(K, Y), 1e-11)


def test_other_places_agree() -> None:
    """Gradients taken outside, those of gradients, and batches are those of plain JAX."""
    with jax.enable_x64(True):
        close(jax.jit(jax.grad(ag.optimize(likelihood)))(K, Y), jax.jit(jax.grad(likelihood))(K, Y), 1e-12)
        twice = lambda K, y: jax.grad(lambda K: jnp.sum(jnp.sin(jax.grad(likelihood)(K, y))))(K)  # noqa: E731
        close(jax.jit(ag.optimize(twice))(K, Y), jax.jit(twice)(K, Y), 1e-11)
        outside = lambda g: jax.jit(jax.grad(lambda K: jnp.sum(jnp.sin(g(K, Y)))))  # noqa: E731
        close(outside(ag.optimize(jax.grad(likelihood)))(K), outside(jax.grad(likelihood))(K), 1e-11)
        batch = np.stack([K, 2 * K]), np.stack([Y, -Y])
        for f in (likelihood, samples):
            g = jax.vmap(jax.grad(f, (0, 1)))
            close(jax.jit(ag.optimize(g))(*batch), jax.jit(g)(*batch), 1e-12)
            outer = jax.vmap(ag.optimize(jax.grad(f, (0, 1))))
            close(jax.jit(outer)(*batch), jax.jit(g)(*batch), 1e-12)


def dense(K: Any, y: Any) -> Any:
    """A cotangent that is a full triangle."""
    return jnp.sum(jnp.sin(jnp.linalg.cholesky(K))) + 0 * y.sum()


def many(K: Any, y: Any) -> Any:
    """As many columns as rows."""
    return jnp.sum(jnp.sin(jnp.linalg.cholesky(K) @ jnp.sin(K))) + 0 * y.sum()


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (dense, "what it is multiplied with is no sum of products of few columns"),
        (many, "what it is multiplied with has as many columns"),
    ],
)
def test_refuses(f: Callable[..., Any], reason: str) -> None:
    """Where nothing would be saved, the report says why."""
    g = jax.grad(f)
    assert reasons(g, K, Y) == []
    assert reasons(g, K, Y, fired=False) == [reason]


def turned(L: Any, M: Any) -> Any:
    """L^T M."""
    return lax.dot_general(L, M, (((0,), (0,)), ((), ())))


def outer(u: Any, y: Any) -> Any:
    """A column times a row."""
    return lax.dot_general(u, y[:, None], (((1,), (1,)), ((), ())))


def above(K: Any, y: Any) -> Any:
    """The product is read above its diagonal, where the masked cotangent matters."""
    L = jnp.linalg.cholesky(K)
    u = solve_triangular(L, y[:, None], lower=True, trans=1)
    return turned(L, jnp.tril(outer(u, y)))


def kept_above(K: Any, y: Any) -> Any:
    """The mask keeps one diagonal above the middle one."""
    return jnp.tril(above(K, y), 1)


def other_factor(K: Any, y: Any) -> Any:
    """What was solved with one factor is multiplied with another: two products in a row, but no cancelling."""
    L = jnp.linalg.cholesky(K)
    u = solve_triangular(jnp.linalg.cholesky(2 * K), y[:, None], lower=True, trans=1)
    return jnp.tril(turned(L, jnp.tril(outer(u, y))))


def strictly(K: Any, y: Any) -> Any:
    """A cotangent without its diagonal is no sum of outer products below it."""
    L = jnp.linalg.cholesky(K)
    u = solve_triangular(L, y[:, None], lower=True, trans=1)
    return jnp.tril(turned(L, jnp.tril(outer(u, y), -1)))


def upper(K: Any, y: Any) -> Any:
    """The upper triangle is kept."""
    return jnp.triu(above(K, y))


@pytest.mark.parametrize("f", [above, kept_above, other_factor, strictly, upper])
def test_near_misses_are_the_same(f: Callable[..., Any]) -> None:
    """Products that are read above the diagonal, of other factors, or with other masks."""
    with jax.enable_x64(True):
        solved = reasons(f, K, Y)
        assert solved == ([] if f is not other_factor else solved)
        close(jax.jit(ag.optimize(f))(K, Y), jax.jit(f)(K, Y), 1e-12)


def test_written_by_hand() -> None:
    """The same product as a user writes it, read below its diagonal, is one of few columns."""
    below = lambda K, y: jnp.tril(above(K, y))  # noqa: E731
    with jax.enable_x64(True):
        assert len(reasons(below, K, Y)) == 1
        close(jax.jit(ag.optimize(below))(K, Y), jax.jit(below)(K, Y), 1e-12)


def test_small_factors_and_strict_numerics_are_left() -> None:
    """Of few rows nothing is said; and other roundings need the default numerics."""
    small = FEWEST - 1
    assert reasons(jax.grad(likelihood), K[:small, :small], Y[:small]) == []
    assert reasons(jax.grad(likelihood), K, Y, numerics="strict") == []
    assert len(reasons(jax.grad(likelihood), K, Y)) == 1


def test_what_is_not_positive_definite_is_nan() -> None:
    """As with JAX: the factor is nan, and so is the gradient on and below the diagonal."""
    g = jax.grad(likelihood)
    bad = (K - 3 * np.eye(N)).astype("float32")
    want, got = jax.jit(g)(bad, Y), jax.jit(ag.optimize(g))(bad, Y)
    assert np.isnan(want).all()
    assert np.isnan(got).all()
