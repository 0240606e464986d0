"""Solves and factors of many small matrices are written out, with LAPACK's pivots and its accuracy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest

import aerogel as ag
from rules.rules_under_test import normal, refusals, report_of

SOLVE, TRIANGULAR, CHOLESKY, LU = (
    ag.rules.small_solve,
    ag.rules.small_triangular_solve,
    ag.rules.small_cholesky,
    ag.rules.small_lu,
)
RULES = [SOLVE, TRIANGULAR, CHOLESKY, LU]
N = 64


def matrices(n: int, seed: int = 0, count: int = N) -> Any:
    """Matrices of which none is close to singular, in an order that needs pivots."""
    return jnp.flip(normal(seed, count, n, n) / n + 3 * jnp.eye(n), 1)


def definite(n: int) -> Any:
    """Symmetric positive definite matrices."""
    A = matrices(n)
    return A @ jnp.matrix_transpose(A)


def fired(f: Callable[..., Any], *args: Any) -> set[str]:
    """Names of the rules that fire; the results must stay what they were."""
    return {d.rule for d in report_of(f, RULES, *args).fired}


solved = jax.vmap(jnp.linalg.solve)
SPELLINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "vmap": (solved, (matrices(3), normal(1, N, 3))),
    "vmap over the last axis": (
        jax.vmap(jnp.linalg.solve, (2, 1), 1),
        (jnp.moveaxis(matrices(3), 0, 2), normal(1, 3, N)),
    ),
    "vmap of vmap": (jax.vmap(solved), (matrices(2).reshape(8, 8, 2, 2), normal(1, 8, 8, 2))),
    "one right-hand side for all": (jax.vmap(jnp.linalg.solve, (0, None)), (matrices(3), normal(1, 3))),
    "several for each": (jax.vmap(jax.vmap(jnp.linalg.solve, (None, 0)), (0, 0)), (matrices(3), normal(1, N, 4, 3))),
    "two axes of them": (
        jax.vmap(jax.vmap(jax.vmap(jnp.linalg.solve, (None, 0)), (None, 0))),
        (matrices(3), normal(1, N, 2, 4, 3)),
    ),
    "stacks": (jnp.linalg.solve, (matrices(4), normal(1, N, 4, 2))),
    "many columns": (jnp.linalg.solve, (matrices(2), normal(1, N, 2, 20))),
    "inv": (jnp.linalg.inv, (matrices(4),)),
    "one 2 x 2": (jnp.linalg.inv, (matrices(2)[0],)),
    "in a loop": (
        lambda A, b: jax.lax.scan(lambda c, x: (solved(A, c) + x, c), b, jnp.ones(3)),
        (matrices(3), normal(1, N, 3)),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_solves_are_found(name: str) -> None:
    """Each spelling is found, and its results stay what they were."""
    f, args = SPELLINGS[name]
    assert SOLVE.name in fired(f, *args)


def test_derivatives_are_found() -> None:
    """The solve with the transpose that a derivative takes is found too."""
    loss = lambda A, b: jnp.sum(solved(A, b) ** 2)  # noqa: E731
    report = report_of(jax.grad(loss, (0, 1)), RULES, matrices(3), normal(1, N, 3))
    assert sum(d.rule == SOLVE.name for d in report.fired) == 2


def test_factors_are_found() -> None:
    """Cholesky factors, solves with them, and the LU factors of a gradient of a determinant."""
    both = jax.vmap(lambda A, b: jsp.linalg.cho_solve(jsp.linalg.cho_factor(A), b))
    assert fired(both, definite(3), normal(1, N, 3)) == {CHOLESKY.name, TRIANGULAR.name}
    assert fired(
        lambda b, L: jax.lax.linalg.triangular_solve(L, b, transpose_a=True), normal(1, N, 2, 3), definite(3)
    ) == {TRIANGULAR.name}
    assert LU.name in fired(jax.grad(lambda A: jnp.sum(jnp.linalg.det(A))), matrices(4))


def test_float64_is_found() -> None:
    """Double precision too."""
    with jax.enable_x64(True):
        assert SOLVE.name in fired(solved, matrices(3).astype("float64"), normal(1, N, 3, dtype="float64"))


@pytest.mark.parametrize(
    ("f", "args", "reason"),
    [
        (jnp.linalg.cholesky, (jnp.eye(5)[None].repeat(N, 0),), "larger than 4 x 4"),
        (jnp.linalg.cholesky, (definite(3)[: N - 1],), f"fewer than {N} matrices: LAPACK is no slower"),
        (jnp.linalg.cholesky, (definite(3) + 0j,), "complex64 numbers"),
        (jax.lax.linalg.lu, (normal(0, N, 3, 2),), "not square"),
        (jnp.linalg.cholesky, (definite(3)[:0],), "it has no elements"),
    ],
)
def test_what_would_lose_stays(f: Callable[..., Any], args: Any, reason: str) -> None:
    """Where LAPACK is as fast, or the form is another one, the rules say so."""
    assert refusals_of_all(f, *args) == {reason}


def refusals_of_all(f: Callable[..., Any], *args: Any) -> set[str]:
    """Why none of the rules fires."""
    report = report_of(f, RULES, *args)
    assert not report.fired
    return {d.reason for d in report.refused}


def test_other_solves_stay() -> None:
    """A solve that iterates, or that has other factors, is its author's."""
    cg = jax.vmap(lambda A, b: jsp.sparse.linalg.cg(lambda x: A @ x, b)[0])
    assert refusals(cg, SOLVE, definite(2), normal(1, N, 2)) == ["it is no solve with a dense matrix by its factors"]


def test_solves_with_other_factors_are_found() -> None:
    """A solve for definite matrices keeps its factors: what they read, their nan, and JAX's derivative."""
    positive = jax.vmap(lambda A, b: jsp.linalg.solve(A, b, assume_a="pos"))
    A, b = definite(3), normal(1, N, 3)
    assert fired(positive, A, b) == {SOLVE.name, CHOLESKY.name}
    loss = lambda A, b: jnp.sum(positive(A, b) ** 2)  # noqa: E731
    report = report_of(jax.grad(loss, (0, 1)), RULES, A, b)
    assert sum(d.rule == SOLVE.name for d in report.fired) == 2
    lower = A.at[:, 2, 0].add(1.0)  # of which the upper triangles are factored
    indefinite = A.at[5].multiply(-1.0)
    for given in (lower, indefinite):
        np.testing.assert_allclose(jax.jit(ag.optimize(positive, rules=RULES))(given, b), positive(given, b), rtol=1e-4)
    optimised = ag.optimize(loss, rules=RULES, passes=())
    for ours, theirs in zip(jax.grad(optimised, (0, 1))(A, b), jax.grad(loss, (0, 1))(A, b), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_solutions_are_as_accurate_as_lapacks(n: int) -> None:
    """For conditions up to 1e6, the error against float64 is at most 1.5 of LAPACK's in the mean, and 3 at worst."""
    rng = np.random.default_rng(n)
    count = 2000
    q, p = (np.linalg.qr(rng.normal(size=(count, n, n)))[0] for _ in range(2))
    sizes = 10.0 ** rng.uniform(-6, 0, (count, n))
    A = jnp.asarray(q @ (sizes[..., None] * p), "float32")
    b = jnp.asarray(rng.normal(size=(count, n)), "float32")
    exact = np.linalg.solve(np.asarray(A, np.float64), np.asarray(b, np.float64)[..., None])[..., 0]
    ours, theirs = (
        np.linalg.norm(np.asarray(f(A, b)) - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
        for f in (jax.jit(ag.optimize(solved, rules=RULES)), jax.jit(solved))
    )
    assert np.exp(np.mean(np.log(ours + 1e-9))) <= 1.5 * np.exp(np.mean(np.log(theirs + 1e-9)))
    assert ours.max() <= 3 * theirs.max()


def test_singular_matrices_stay_singular() -> None:
    """A determinant of a singular matrix is 0, a factor of an indefinite one NaN, as from LAPACK."""
    singular = jnp.zeros((N, 4, 4)).at[:, 0, 1].set(1.0)
    for rule, f, x in [
        (LU, jax.lax.linalg.lu, singular),
        (LU, jax.lax.linalg.lu, singular.at[:, 2:, 2:].set(1.0)),
        (CHOLESKY, jax.lax.linalg.cholesky, singular + jnp.eye(4).at[3, 3].set(-1.0)),
    ]:
        got = jax.tree.leaves(jax.jit(ag.optimize(f, rules=[rule], passes=()))(x))
        for a, b in zip(got, jax.tree.leaves(jax.jit(f)(x)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_they_keep_their_claims() -> None:
    """For finite matrices that are far from singular, values are as exact as sums in another order are."""
    A, b = matrices(3), normal(1, N, 3)
    regular = lambda A: jnp.flip(jnp.tanh(A) / 3 + 2 * jnp.eye(3), 1)  # noqa: E731
    symmetric = lambda A: regular(A)[:, ::-1] + jnp.matrix_transpose(regular(A)[:, ::-1])  # noqa: E731
    triangular = lambda L, b: jax.lax.linalg.triangular_solve(L, b, left_side=True, lower=True)  # noqa: E731
    for rule, f in [
        (SOLVE, lambda A, b: solved(regular(A), b)),
        (CHOLESKY, lambda A, b: jax.lax.linalg.cholesky(symmetric(A)) + b[..., None]),
        (LU, lambda A, b: jax.lax.linalg.lu(regular(A))[0] + b[..., None]),
        (TRIANGULAR, lambda A, b: triangular(symmetric(A), b[..., None])),
    ]:
        ag.check_rule(rule, fires_on=[(f, (A, b))], under=[])
