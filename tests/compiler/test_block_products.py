"""Products with matrices of blocks and zeros, and products that are read in blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import block_diag

import aerogel as ag
from compiler.test_contraction import assert_cheaper, passed, run, values

N = 96
A, B, C = values(N, N), values(N, N, seed=1), values(N, N + 32, seed=2)
X, V = values(3 * N + 32, seed=3), values(3 * N + 32, 40, seed=4)


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradient as JAX writes them."""
    return jax.value_and_grad(lambda *xs: jnp.mean(jnp.sin(f(*xs))), tuple(range(f.__code__.co_argcount)))


def joined(A: Any, B: Any, V: Any) -> Any:
    """Blocks of two rows, written out, with zeros around."""
    rows = jnp.block([[jnp.zeros((N, N)), A], [B, jnp.zeros((N, N))]])
    return jnp.pad(rows, ((8, 0), (0, N + 32))) @ V


def in_one_row(A: Any, B: Any, V: Any) -> Any:
    """Two blocks in the same rows, far apart."""
    row = jnp.concatenate([A, jnp.zeros((N, N + 32)), B], 1)
    return jnp.concatenate([row, jnp.zeros((N, row.shape[1]))]) @ V


BLOCKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]] = {
    "a vector": (lambda A, B, C, v: block_diag(A, B, C) @ v, (A, B, C, X), 2),
    "many columns": (lambda A, B, C, V: block_diag(A, B, C) @ V, (A, B, C, V), 2),
    "from the left": (lambda A, B, C, V: V[: 3 * N].T @ block_diag(A, B, C), (A, B, C, V), 2),
    "transposed": (lambda A, B, C, V: block_diag(A, B, C).T @ V[: 3 * N], (A, B, C, V), 2),
    "einsum": (lambda A, B, C, V: jnp.einsum("ij,jk->ki", block_diag(A, B, C), V), (A, B, C, V), 2),
    "off the diagonal": (joined, (A, B, V), 2),
    "in one row": (in_one_row, (A, B, V), 2),
    "twice": (lambda A, B, V: (M := block_diag(A, B, A)) @ (M @ V[: 3 * N]), (A, B, V), 2),
    "bfloat16": (
        lambda A, B, C, V: block_diag(A, B, C) @ V,
        tuple(x.astype(jnp.bfloat16) for x in (A, B, C, V)),
        2,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_zeros_around_blocks_are_not_multiplied(name: str) -> None:
    """Nor made; with the numbers that the product gives."""
    f, args, times = BLOCKS[name]
    tolerance = 2e-2 if args[0].dtype == jnp.bfloat16 else 1e-4
    after = assert_cheaper(f, *args, times=times, tolerance=tolerance)
    assert not [e for e in after.jaxpr.eqns if e.outvars[0].aval.size >= 9 * N * N]


@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in ("bfloat16", "twice")])
def test_their_gradients_make_blocks_alone(name: str) -> None:
    """Of what JAX makes whole, and cuts."""
    f, args, _ = BLOCKS[name]
    after = assert_cheaper(gradient(f), *args, times=1.5, tolerance=1e-4)
    assert not [e for e in after.jaxpr.eqns if e.primitive.name == "dot_general" and e.outvars[0].aval.size > 4 * N * N]


CUT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a corner": (lambda A, B: (A @ B)[:20, 30:60], (A, B)),
    "rows": (lambda A, B: (A @ B)[5:40], (A, B)),
    "two corners": (lambda A, B: ((P := A @ B)[:30, :30], jnp.sin(P[40:60])[:, 5:9]), (A, B)),
    "under jit": (jax.jit(lambda A, B: jnp.outer(A, B)[:100, :100] @ A), (A[0], B[0])),
}


@pytest.mark.parametrize("name", ["a corner", "rows", "two corners"])
def test_what_is_cut_off_is_not_multiplied(name: str) -> None:
    """Slices of a product are products of slices."""
    f, args = CUT[name]
    assert_cheaper(f, *args, times=1.2)


def test_the_gradient_of_each_block_is_that_of_plain_jax() -> None:
    """Against float64."""
    f = gradient(lambda A, B, C, V: block_diag(A, B, C) @ V)
    args = (A, B, C, V)
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in args]
        truth = [np.asarray(x) for x in f(*wide)[1]]
    for got, want in zip(jax.jit(ag.optimize(f))(*args)[1], truth, strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-6)


def test_a_block_of_no_numbers_stays_in_its_rows() -> None:
    """Of infinite and undefined blocks the zeros beside them are not multiplied: other rows stay numbers."""
    f = lambda A, B, v: block_diag(A, B) @ v  # noqa: E731
    got = jax.jit(ag.optimize(f))(A, jnp.full_like(B, jnp.nan), X[: 2 * N])
    np.testing.assert_allclose(got[:N], A @ X[:N], rtol=1e-4, atol=1e-4)
    assert np.isnan(np.asarray(got[N:])).all()


NEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "the matrix is read": (lambda A, B, v: ((M := block_diag(A, B)) @ v, jnp.sin(M)), (A, B, X[: 2 * N])),
    "full": (lambda A, B, v: jnp.concatenate([A, B], 1) @ v, (A, B, X[: 2 * N])),
    "rows that overlap": (
        lambda A, B, v: jnp.concatenate([jnp.pad(A, ((0, N), (0, N))), jnp.pad(B, ((9, N - 9), (0, N)))], 1) @ v,
        (A, B, values(4 * N)),
    ),
    "small": (lambda A, B, v: block_diag(A[:4, :4], B[:4, :4]) @ v[:8], (A, B, X)),
    "padded with ones": (
        lambda A, B, v: jnp.concatenate([jnp.pad(A, ((0, 0), (0, 2 * N)), constant_values=1.0)] * 2) @ v,
        (A, B, X[: 3 * N]),
    ),
    "integers": (lambda A, B, v: block_diag(A, B) @ v, tuple((9 * x).astype("int32") for x in (A, B, X[: 2 * N]))),
    "all is read": (lambda A, B: ((P := A @ B)[:50], P[50:]), (A, B)),
    "the product is read": (lambda A, B: ((P := A @ B)[:5, :5], jnp.sin(P)), (A, B)),
    "every second row": (lambda A, B: (A @ B)[::2], (A, B)),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name: str) -> None:
    """What is needed whole, not of zeros, or small stays."""
    f, args = NEAR[name]
    before, after, fired = passed(f, *args)
    assert not [d for d in fired if "block" in d.what]
    for got, want in zip(run(after, *args), run(before, *args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
