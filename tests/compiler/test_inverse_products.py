"""A product with an inverse becomes a solve, however it is spelt."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler import Report
from aerogel.compiler.passes.inverse_products import InverseProducts

N = 6
inv = jnp.linalg.inv


def normal(seed: int, *shape: int) -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


def regular(*batch: int, n: int = N) -> Any:
    """Matrices that are far from singular, and not symmetric."""
    return normal(0, *batch, n, n) / 3 + 3 * jnp.eye(n)


A, AS, V, B, XS = regular(), regular(4), normal(1, N), normal(2, N, 3), normal(3, 4, N)


def optimised(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, rules=[], passes=(InverseProducts(),), **options)


def report_of(f: Callable[..., Any], *args: Any, **options: Any) -> Report:
    """What the pass does; the results must stay what they were."""
    reports: list[Report] = []
    got = jax.jit(optimised(f, on_report=reports.append, **options))(*args)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        np.testing.assert_allclose(x, y, 1e-4, 1e-4)
    return reports[-1]


def einsum(spelt: str) -> Callable[..., Any]:
    """The product of an inverse with something, in this spelling."""
    return lambda A, b: jnp.einsum(spelt, inv(A), b)


SPELLINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "A^-1 b": (lambda A, b: inv(A) @ b, (A, V)),
    "A^-1 B": (lambda A, b: jnp.dot(inv(A), b), (A, B)),
    "sums of rows": (lambda A, b: inv(A).sum(1) * b, (A, V)),
    "sums of columns": (lambda A, b: inv(A).sum(0) * b, (A, V)),
    "sums, stacks": (lambda A, b: inv(A).sum(-1) + inv(A).sum(-2), (regular(4, n=12), V)),
    "A^-T B": (lambda A, b: inv(A).T @ b, (A, B)),
    "b A^-1": (lambda A, b: b @ inv(A), (A, V)),
    "B' A^-T": (lambda A, b: b.T @ inv(A).T, (A, B)),
    "ij,nj->ni": (einsum("ij,nj->ni"), (A, XS)),
    "ij,jk->ki": (einsum("ij,jk->ki"), (A, B)),
    "quadratic form": (lambda A, b: b @ inv(A) @ b, (A, V)),
    "of many vectors": (lambda A, X: jnp.einsum("ni,ij,nj->n", X, inv(A), X), (A, XS)),
    "multi_dot": (lambda A, b: jnp.linalg.multi_dot([b, inv(A), b]), (A, V)),
    "stacks": (lambda A, B: inv(A) @ B, (AS, normal(2, 4, N, 2))),
    "vmap": (jax.vmap(lambda A, b: b @ inv(A)), (AS, XS)),
    "vmap of vmap, shared": (
        jax.vmap(jax.vmap(lambda A, b: inv(A) @ b, (None, 0)), (None, 0)),
        (A, normal(1, 1, 3, N)),
    ),
    "vmap, b shared": (jax.vmap(lambda A, b: inv(A) @ b, (0, None)), (AS, V)),
    "batch in the middle": (einsum("nij,kni->jkn"), (AS, normal(1, 2, 4, N))),
    "in a loop": (
        lambda A, b: jax.lax.scan(lambda c, _: (inv(A + c[0] / 9) @ c, None), b, None, length=3)[0],
        (A, V),
    ),
    "least squares": (lambda X, y: inv(X.T @ X) @ (X.T @ y), (jnp.concatenate([A, A]), normal(1, 2 * N))),
    "a gain": (lambda P, H, S: P @ H.T @ inv(S), (A, normal(1, 12, N), regular(n=12))),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_it_fires(name: str) -> None:
    """Each spelling is found, and its results stay what they were."""
    f, args = SPELLINGS[name]
    assert len(report_of(f, *args).fired) == 1


def test_double_precision() -> None:
    """And other types."""
    with jax.enable_x64(True):
        assert report_of(lambda A, b: inv(A) @ b, A.astype("float64"), V.astype("float64")).fired
        assert report_of(lambda A, b: inv(A) @ b, A + 1j, V + 0j).fired


def both(A: Any, b: Any) -> Any:
    """A product with an inverse that is a result too."""
    X = inv(A)
    return X @ b, X


@pytest.mark.parametrize(
    ("f", "args", "reasons"),
    [
        (both, (A, V), ["the inverse is a result of its own"]),
        (lambda A, b: inv(A) @ inv(A), (A, V), ["the inverse is multiplied with itself"]),
        (lambda A, b: inv(A) * b, (A, V), ["the inverse is read by `mul`"]),
        (lambda A, b: inv(A).sum() * b, (A, V), ["the inverse is read by `reduce_sum`"]),
        (
            lambda A, b: inv(A) @ b,
            (A, normal(1, N, 30)),
            ["more than 6 columns for 6 rows: one inverse serves all of them"],
        ),
        (
            lambda A, b: jax.lax.scan(lambda c, _: (inv(A) @ c, None), b, None, length=3)[0],
            (A, V),
            ["the matrix is the same in every step of a loop"],
        ),
        (lambda A, b: jnp.linalg.solve(A, b), (A, V), []),
        (lambda A, b: jnp.linalg.solve(A, jnp.eye(N, k=1)) @ b, (A, V), []),
        (lambda A, b: jnp.linalg.pinv(A) @ b, (A, V), []),
        (lambda A, b: jnp.einsum("ij,ij->", inv(A), b), (A, A), ["the product is not one of matrices"]),
    ],
)
def test_near_misses_stay(f: Callable[..., Any], args: Any, reasons: list[str]) -> None:
    """What needs the inverse itself, or has none, is left alone."""
    report = report_of(f, *args)
    assert not report.fired
    assert [d.reason for d in report.refused] == reasons


def test_strict_numerics() -> None:
    """A solve has other roundings."""
    assert not report_of(lambda A, b: inv(A) @ b, A, V, numerics="strict").decisions


def test_the_gradient_is_that_of_a_solve() -> None:
    """Before differentiation the pass acts too: no gradient solves for all columns of an identity."""
    f = lambda A, b: jnp.sum((inv(A) @ b) ** 2)  # noqa: E731
    gradient = jax.grad(optimised(f), (0, 1))
    for got, want in zip(gradient(A, V), jax.grad(f, (0, 1))(A, V), strict=True):
        np.testing.assert_allclose(got, want, 1e-3, 1e-4)
    shapes = [
        v.aval.shape
        for eqn in jax.make_jaxpr(gradient)(A, V).jaxpr.eqns
        if eqn.primitive.name == "custom_linear_solve"
        for v in eqn.outvars
    ]
    assert shapes == [(N,), (N,)]


def test_a_gradient_that_jax_wrote() -> None:
    """It solves for an outer product, and multiplies that with the inverse again: in the end, for two columns."""
    f = jax.value_and_grad(lambda A, b: jnp.sum((inv(A) @ b) ** 2), (0, 1))
    A, b = normal(0, 40, 40) / 6 + 3 * jnp.eye(40), normal(1, 40)
    program = jax.make_jaxpr(ag.optimize(f))(A, b)
    solves = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "custom_linear_solve"]
    assert sorted(eqn.outvars[0].aval.size for eqn in solves) in ([40, 40], [40, 40, 40])
    assert sum(eqn.primitive.name == "lu" for eqn in program.jaxpr.eqns) == 1
    for got, want in zip(jax.tree.leaves(ag.optimize(f)(A, b)), jax.tree.leaves(f(A, b)), strict=True):
        np.testing.assert_allclose(got, want, 1e-3, 1e-4)


@pytest.mark.parametrize("loss", [jnp.sum, lambda w: jnp.sum(jnp.sin(w))])
@pytest.mark.parametrize(
    "f",
    [
        lambda X, y: inv(X.T @ X) @ X.T @ y,
        lambda X, y: inv(X.T @ X + 0.1 * jnp.eye(X.shape[1])) @ X.T @ y,
        lambda X, y: X @ inv(X.T @ X) @ X.T @ y,
    ],
)
def test_a_gradient_of_normal_equations(f: Callable[..., Any], loss: Callable[..., Any]) -> None:
    """What is solved for is an outer product only when contraction has taken it in another order: for two columns."""
    g = jax.grad(lambda X, y: loss(f(X, y)), (0, 1))
    X, y = normal(0, 300, 30), normal(1, 300)
    eqns = jax.make_jaxpr(ag.optimize(g))(X, y).jaxpr.eqns
    solves = [v.aval.size for eqn in eqns if eqn.primitive.name == "custom_linear_solve" for v in eqn.outvars]
    assert solves
    assert set(solves) <= {30}
    for got, want in zip(ag.optimize(g)(X, y), g(X, y), strict=True):
        np.testing.assert_allclose(got, want, 1e-3, 1e-4)


def twice(A: Any, b: Any) -> Any:
    """What reads an inverse at two places."""
    return inv(A) @ b + (b.T @ inv(A)).T


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_two_products_are_two_solves(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they have no more columns together than the inverse has."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    large = regular(n=12)
    assert report_of(twice, large, normal(1, 12, 6)).fired
    (refused,) = report_of(twice, large, normal(1, 12, 7)).refused
    assert refused.reason == "more than 12 columns for 12 rows: one inverse serves all of them"
    most = 12 if platform == "cpu" else 48  # of one solve
    assert report_of(lambda A, b: inv(A) @ b, large, normal(1, 12, most)).fired
    assert not report_of(lambda A, b: inv(A) @ b, large, normal(1, 12, most + 1)).fired


@pytest.mark.parametrize(
    ("f", "shapes", "reason"),
    [
        (lambda A, b: inv(A) @ b, ((N, N), (N, N - 1)), None),
        (lambda A, b: inv(A) @ b, ((N, N), (N, N)), "solve for 6 columns"),
        (twice, ((N, N), (N, 1)), "2 solves take longer"),
        (twice, ((64, 3, 3), (64, 3, 1)), None),  # written out, a solve has no calls
        (twice, ((63, 3, 3), (63, 3, 1)), "2 solves take longer"),
        (twice, ((64, 3, 3), (64, 3, 2)), "more than 3 columns"),
        (twice, ((64, 5, 5), (64, 5, 1)), "2 solves take longer"),
    ],
)
def test_few_rows(f: Callable[..., Any], shapes: Any, reason: str | None) -> None:
    """The inverse of few rows is a solve like those that would stand for its products."""
    (n, _), batch = shapes[0][-2:], shapes[0][:-2]
    report = report_of(jax.vmap(f) if batch else f, regular(*batch, n=n), normal(1, *shapes[1]))
    assert len(report.fired) == (reason is None)
    assert all(reason is not None and reason in d.reason for d in report.refused)
    assert len(report.decisions) == 1


def test_a_transposed_solve_shares_the_factors() -> None:
    """`b @ inv(A)` takes the factors of A, which a determinant takes too, and not those of its transpose."""
    f = optimised(lambda A, b: b @ inv(A) + jnp.linalg.slogdet(A)[1])
    text = jax.jit(f).lower(A, V).compile().as_text()
    assert text.count("lapack_sgetrf") == 1


def test_it_gains_digits() -> None:
    """For matrices of condition 1e4, what is left of `A x - b` is a tenth of what a product with the inverse leaves."""
    rng = np.random.default_rng(0)
    q, p = (np.linalg.qr(rng.normal(size=(50, N, N)))[0] for _ in range(2))
    hard = jnp.asarray(q @ (np.logspace(-4, 0, N)[:, None] * p), "float32")
    b = jnp.einsum("nij,nj->ni", hard, normal(1, 50, N))

    def left(f: Callable[..., Any]) -> float:
        x = np.asarray(jax.jit(f)(hard, b), float)
        return float(np.abs(np.einsum("nij,nj->ni", np.asarray(hard, float), x) - np.asarray(b, float)).mean())

    f = jax.vmap(lambda A, b: inv(A) @ b)
    assert left(optimised(f)) <= 0.1 * left(f)
