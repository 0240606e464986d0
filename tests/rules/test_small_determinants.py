"""Determinants of small matrices are written out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from rules.rules_under_test import normal, report_of

slogdet, det = jnp.linalg.slogdet, jnp.linalg.det
RULES = [ag.rules.small_slogdet, ag.rules.small_log_det, ag.rules.small_det]


def fired(f: Callable[..., Any], *args: Any) -> list[str]:
    """Names of the rules that fire; the results must stay what they were."""
    return [d.rule for d in report_of(f, RULES, *args).fired]


def log_likelihood(A: Any, x: Any) -> Any:
    """Of a Gaussian with this covariance's root."""
    return slogdet(A)[1] - x @ A @ x


@pytest.mark.parametrize(
    ("f", "args", "name"),
    [
        (slogdet, (normal(0, 5, 3, 3),), "small-slogdet"),
        (jax.vmap(slogdet), (normal(0, 5, 4, 4),), "small-slogdet"),
        (jax.vmap(slogdet, 2), (normal(0, 3, 3, 5),), "small-slogdet"),
        (lambda A: slogdet(A)[1] * 2, (normal(0, 4, 4),), "small-log-det"),
        (jax.vmap(log_likelihood), (normal(0, 5, 3, 3), normal(1, 5, 3)), "small-log-det"),
        (jax.value_and_grad(lambda A: jnp.sum(slogdet(A)[1])), (normal(0, 5, 3, 3),), "small-log-det"),
        (lambda A: jax.lax.map(det, A), (normal(0, 5, 4, 4),), "small-det"),
        (jax.vmap(jax.vmap(det)), (normal(0, 2, 3, 4, 4),), "small-det"),
    ],
)
def test_it_fires(f: Callable[..., Any], args: Any, name: str) -> None:
    """Each spelling is found."""
    assert fired(f, *args) == [name]


@pytest.mark.parametrize(
    ("f", "A"),
    [
        (slogdet, normal(0, 5, 2, 2)),
        (slogdet, normal(0, 5, 9, 9)),
        (det, normal(0, 5, 3, 3)),
        (slogdet, normal(0, 5, 3, 3) + 0j),
        (slogdet, normal(0, 0, 3, 3)),
        (lambda A: jax.lax.linalg.lu(A)[0], normal(0, 5, 3, 3)),
    ],
)
def test_others_stay(f: Callable[..., Any], A: Any) -> None:
    """Other sizes and types are left to LAPACK, or to JAX's formulas."""
    assert fired(f, A) == []


def test_signs_and_zeros() -> None:
    """Row exchanges turn the sign, a singular matrix has sign 0, logarithm -inf and determinant 0."""
    A = jnp.stack([jnp.eye(4)[jnp.array(order)] for order in ([1, 0, 2, 3], [1, 2, 3, 0], [3, 2, 1, 0], [0, 0, 2, 3])])
    A = jnp.concatenate([A, -2 * A, jnp.full((1, 4, 4), jnp.nan)])
    for f in (slogdet, det):
        got = jax.tree.leaves(jax.jit(ag.optimize(f, rules=RULES))(A))
        for x, y in zip(got, jax.tree.leaves(jax.jit(f)(A)), strict=True):
            np.testing.assert_allclose(x, y, 1e-6)


def test_they_keep_their_claims() -> None:
    """Values are as exact as LAPACK's for finite matrices far from singular, and gradients are."""
    regular = lambda A: jnp.flip(jnp.tanh(A) / 3 + 2 * jnp.eye(4), 1)  # noqa: E731
    for rule, f in [
        (ag.rules.small_slogdet, lambda A: slogdet(regular(A))),
        (ag.rules.small_log_det, lambda A: slogdet(regular(A))[1]),
        (ag.rules.small_det, lambda A: det(regular(A))),
    ]:
        ag.check_rule(rule, fires_on=[(f, (normal(0, 4, 4),))], under=[jax.vmap])


def test_matrices_without_entries() -> None:
    """A determinant whose derivative JAX cannot trace (no rows) is looked at like any other, and stays."""
    f = lambda A: jnp.linalg.det(A)  # noqa: E731
    assert jax.jit(ag.optimize(f))(jnp.zeros((3, 0, 0))).shape == (3,)
    assert jax.jit(ag.optimize(f))(jnp.zeros((0, 3, 3))).shape == (0,)


def test_a_sign_is_computed_once() -> None:
    """The gradient of a determinant by sign and logarithm reads a sign that is stored, and is what it was."""
    A = normal(0, 40, 4, 4)
    loss = jax.grad(lambda A: jnp.sum((lambda sign, log: sign * jnp.exp(log))(*slogdet(A))))
    ours = ag.optimize(loss, rules=RULES, passes=())
    assert "bitcast_convert_type" in str(jax.make_jaxpr(ours)(A))
    np.testing.assert_allclose(jax.jit(ours)(A), jax.jit(loss)(A), rtol=2e-3, atol=1e-3)


def covariances(count: int, n: int, dtype: str = "float32") -> Any:
    """Positive definite matrices."""
    A = normal(0, count, n, n, dtype=dtype)
    return A @ A.mT + jnp.eye(n, dtype=A.dtype)


cholesky, diagonal = jnp.linalg.cholesky, lambda L: jnp.diagonal(L, axis1=-2, axis2=-1)
FACTORS = [ag.rules.small_cholesky_log_det, ag.rules.small_cholesky_diagonal]


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda A: 2 * jnp.log(diagonal(cholesky(A))).sum(-1), "small-cholesky-log-det"),
        (
            jax.vmap(lambda A: jnp.log(jnp.diag(jax.scipy.linalg.cho_factor(A, lower=True)[0])).sum()),
            "small-cholesky-log-det",
        ),
        (jax.vmap(lambda A: jnp.log(jnp.diag(cholesky(A))).sum()), "small-cholesky-log-det"),
        (jax.vmap(lambda A: jnp.prod(cholesky(A).diagonal())), "small-cholesky-diagonal"),
        (lambda A: diagonal(jax.lax.linalg.cholesky(A)), "small-cholesky-diagonal"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_diagonals_of_cholesky_factors(f: Callable[..., Any], name: str, dtype: str) -> None:
    """However they are read; nan for what is not definite, 0 on no diagonal that LAPACK gives."""
    with jax.enable_x64(dtype == "float64"):
        A = covariances(70, 6, dtype)
        A = A.at[3].set(-A[3]).at[4].set(jnp.nan).at[5, 2].set(0).at[5, :, 2].set(0)
        assert [d.rule for d in report_of(f, FACTORS, A).fired] == [name]


@pytest.mark.parametrize(
    ("f", "A"),
    [
        (lambda A: (lambda L: (jnp.log(diagonal(L)).sum(-1), L))(cholesky(A)), covariances(70, 5)),
        (lambda A: jnp.log(diagonal(cholesky(A))).sum(-1), covariances(70, 9)),
        (lambda A: diagonal(cholesky(A)), covariances(10, 5)),
        (lambda A: cholesky(A)[..., jnp.array([1, 2, 0]), jnp.arange(3)], covariances(70, 3)),
    ],
)
def test_other_reads_of_cholesky_factors_stay(f: Callable[..., Any], A: Any) -> None:
    """Near misses: the factor is read, too; larger ones; few, one by one; places off the diagonal."""
    assert not report_of(f, FACTORS, A).fired


@pytest.mark.parametrize("n", [5, 6, 8])
def test_determinants_of_eight_rows_are_as_exact_as_lapack(n: int) -> None:
    """The error against float64 is no larger than 1.5 of LAPACK's in the mean; a gradient through one is the same."""
    A = normal(1, 300, n, n)
    exact = np.linalg.det(np.asarray(A, np.float64))
    errors = [
        np.abs(np.asarray(jax.jit(one)(A), np.float64) / exact - 1).mean()
        for one in (ag.optimize(det, rules=RULES), det)
    ]
    assert fired(det, A[:3]) == ["small-det"]
    assert errors[0] <= 1.5 * errors[1]
    loss = jax.grad(lambda A: jnp.log(1 + det(A) ** 2).sum())
    np.testing.assert_allclose(jax.jit(ag.optimize(loss))(A), jax.jit(loss)(A), rtol=2e-2, atol=2e-3)
