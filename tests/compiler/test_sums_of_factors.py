"""Factors that are sums with an identity or a product of few terms; rows of identities; masks of one-hot rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.test_contraction import assert_cheaper, assert_near, passed, run, values

N, FEW = 256, 4
A, B, X = values(N, N), values(N, N, seed=1), values(N)
U, V = values(N, FEW), values(FEW, N)
EYE, S, T = jnp.eye, jnp.float32(0.3), jnp.asarray(np.random.default_rng(0).integers(-9, N + 9, 64), jnp.int32)


def joseph(K: Any, H: Any, P: Any) -> Any:
    """A covariance after a measurement."""
    L = EYE(N) - K @ H
    return L @ P @ L.T


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradient as JAX writes them."""
    return jax.value_and_grad(lambda *xs: jnp.mean(jnp.sin(f(*xs))), tuple(range(f.__code__.co_argcount)))


CHEAPER: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]] = {
    "I - K H": (lambda K, H, P: (EYE(N) - K @ H) @ P, (U, V, A), 8),
    "on the right": (lambda K, H, P: P @ (EYE(N) - jnp.dot(K, H)).T, (U, V, A), 8),
    "Joseph's form": (joseph, (U / 16, V, A), 8),
    "gradient": (gradient(lambda K, H, P: (EYE(N) - K @ H) @ P), (U / 16, V / 16, A), 5),
    "a reflection": (lambda v, Y: (EYE(N) - 2 * jnp.outer(v, v) / (v @ v)) @ Y, (X, A), 20),
    "its gradient": (gradient(lambda v, Y: (EYE(N) - 2 * jnp.outer(v, v) / (v @ v)) @ Y), (X, A), 2),
    "few columns beside weights": (lambda W, u, v, x: (W + 0.5 * u @ v) @ x, (A, U, V, X), 4),
    "a shifted matrix": (lambda A, s, x: (A + s * EYE(1024)) @ x, (values(1024, 1024), S, values(1024)), 1.4),
    "three terms": (lambda u, v, x: (EYE(N) + u @ v - jnp.diag(x)) @ x, (U, V, X), 4),
    "rows of it are scaled": (lambda r, K, H, P: (EYE(N) - r[:, None] * (K @ H)) @ P, (X, U, V, A), 8),
    "its columns are divided": (lambda r, K, H, P: (jnp.ones((N, 1)) * r + (K @ H) / r).T @ P, (X**2 + 1, U, V, A), 8),
    "a row that is repeated": (lambda r, K, H, P: (r + K @ H) @ P, (X, U, V, A), 8),
    "under vmap": (jax.vmap(lambda K, H, P: (EYE(N) - K @ H) @ P), tuple(jnp.stack([x] * 3) for x in (U, V, A)), 8),
}


@pytest.mark.parametrize("name", CHEAPER)
def test_terms_are_multiplied_one_by_one(name: str) -> None:
    """With the numbers that the sum gives."""
    f, args, times = CHEAPER[name]
    assert_cheaper(f, *args, times=times, tolerance=1e-4)


NEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "the sum is read otherwise": (lambda K, H, P: ((L := EYE(N) - K @ H) @ P, jnp.tanh(L)), (U, V, A)),
    "many columns": (lambda W, G, Y: (W + G @ W) @ Y, (A, B, A)),
    "two full matrices": (lambda P, Q, x: (P + Q) @ x, (A, B, X)),
    "a vector": (lambda W, x, y: (x * y + 2 * x) @ W, (A, X, X)),
    "entries are scaled": (lambda S, K, H, P: (EYE(N) - S * (K @ H)) @ P, (B, U, V, A)),
    "a full matrix for many columns": (lambda W, Y: (W + EYE(N)) @ Y, (A, B)),
    "a function of the sum": (lambda K, H, P: jnp.tanh(EYE(N) - K @ H) @ P, (U, V, A)),
    "small": (lambda K, H, P: (EYE(4) - K @ H) @ P, (U[:4, :1], V[:1, :4], A[:4, :4])),
}


@pytest.mark.parametrize("name", NEAR)
def test_other_sums_are_made(name: str) -> None:
    """Where that is cheaper, or where they are needed."""
    f, args = NEAR[name]
    assert not [d for d in passed(f, *args)[2] if "one by one" in d.what]


def squares(A: Any, v: Any) -> Any:
    """The sixth power, by squares that are read twice."""
    B = A @ A
    return (B @ B) @ (B @ v)


def steps(A: Any, v: Any) -> Any:
    """The fifth power, step by step."""
    P = EYE(N)
    for _ in range(5):
        P = P @ A
    return P @ v


SMALL = A / 20
OF_POWERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]] = {
    "a power": (lambda A, v: jnp.linalg.matrix_power(A, 10) @ v, (SMALL, X), 20),
    "from the left": (lambda A, v: v @ jnp.linalg.matrix_power(A, 9), (SMALL, X), 20),
    "squares": (squares, (SMALL, X), 20),
    "steps": (steps, (SMALL, X), 20),
    "few columns": (lambda A, V: jnp.linalg.matrix_power(A, 8) @ V, (SMALL, U), 4),
    "two matrices": (lambda A, B, v: (A @ B @ A) @ ((A @ B) @ v), (SMALL, B / 20, X), 10),
}


@pytest.mark.parametrize("name", OF_POWERS)
def test_gradients_of_powers_are_sums_of_outer_products(name: str) -> None:
    """Of powers that a vector is multiplied by: no product of two matrices is left, and no sum is multiplied by one."""
    f, args, times = OF_POWERS[name]
    after = assert_cheaper(gradient(f), *args, times=times, tolerance=1e-4)
    wide = [e for e in after.jaxpr.eqns if e.primitive.name == "dot_general" and e.outvars[0].aval.size == N * N]
    assert all(min(x.aval.size for x in e.invars) < N * N for e in wide)


def test_gradients_of_powers_agree_with_float64() -> None:
    """As exactly as JAX's own, which goes through the squares."""
    g = gradient(lambda A, v: jnp.linalg.matrix_power(A, 10) @ v)
    A64, v64 = np.asarray(SMALL, np.float64), np.asarray(X, np.float64)
    with jax.enable_x64(True):
        truth = [np.asarray(x) for x in g(jnp.asarray(A64), jnp.asarray(v64))[1]]
    plain, got = (jax.jit(f)(SMALL, X)[1] for f in (g, ag.optimize(g)))
    for mine, his, want in zip(map(np.asarray, got), map(np.asarray, plain), truth, strict=True):
        scale = np.abs(want).max()
        assert np.abs(mine - want).max() <= 2 * np.abs(his - want).max() + 1e-6 * scale


STAY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "the power is read": (
        gradient(lambda A, v: jnp.sum((P := jnp.linalg.matrix_power(A, 4)) @ v) + jnp.sin(P)),
        (SMALL, X),
    ),
    "many columns": (gradient(lambda A, B: jnp.linalg.matrix_power(A, 4) @ B), (SMALL, B)),
    "a difference": (lambda u, v, w, x, A: (u @ v - w @ x) @ A, (U[:, :1], V[:1], U[:, 1:2], V[1:2], A)),
    "small": (gradient(lambda A, v: jnp.linalg.matrix_power(A, 4) @ v), (A[:6, :6], X[:6])),
}


@pytest.mark.parametrize("name", STAY)
def test_sums_of_matrices_are_multiplied_as_they_are(name: str) -> None:
    """Where a term is no product of few terms, where terms would cancel, or for little."""
    f, args = STAY[name]
    assert not [d for d in passed(f, *args)[2] if "what it adds up" in d.what]


def test_a_covariance_stays_one() -> None:
    """Multiplied out as a whole, the terms of Joseph's form would cancel: their sum would be far from positive."""
    K, H = jnp.eye(N, FEW) * 0.999999, jnp.eye(FEW, N)
    P = A @ A.T / N + 1e-3 * jnp.eye(N)
    _, after, fired = passed(joseph, K, H, P)
    assert fired
    (got,) = run(after, K, H, P)
    assert np.linalg.eigvalsh(np.asarray(got, float)).min() > -1e-6


ROWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows of an identity": (lambda t, A: EYE(N)[t] @ A, (T, A)),
    "a permutation": (lambda t, A: A @ EYE(N)[:, t], (jnp.argsort(X), A)),
    "a mask": (lambda t, A: jnp.where(jnp.arange(N)[:, None] == t, A[:, :64], 0).sum(0), (T, A)),
    "a mask under vmap": (
        jax.vmap(lambda t, a: jnp.sum(jnp.where(t == jnp.arange(N), a, 0.0)), (0, 0)),
        (T, A[:64]),
    ),
    "one-hot rows in a long loop": (
        lambda t, A: lax.scan(lambda c, i: (jnp.tanh(c + jax.nn.one_hot(i, N) @ A), None), A[0], jnp.tile(t, 3))[0],
        (T, A),
    ),
    "an identity in a long loop": (
        lambda t, A: lax.fori_loop(0, 200, lambda i, P: (EYE(N) - P[:, :FEW] @ V / 2000) @ P / 2, A),
        (T, A),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_picked(name: str) -> None:
    """Also where an index is out of bounds."""
    f, args = ROWS[name]
    assert_cheaper(f, *args, times=1.5)


def test_an_index_into_an_identity_is_clamped() -> None:
    """As an index into any array is; that of one-hot rows is not."""
    t = jnp.asarray([-1000, -1, 0, 5, N - 1, N, 1000])
    before, after, fired = passed(lambda t, A: EYE(N)[t] @ A, t, A)
    assert fired
    assert_near(run(after, t, A), run(before, t, A))
