"""Factors that are sums with an identity or a product of few terms; rows of identities; masks of one-hot rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

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
