"""Covariances over time are accumulated in the loop, around whatever center is known after it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import made, normal
from drawing.free_prices import free_prices

T, POINTS, SIZE = 48, 40, 6


def stacked(x: Any) -> Any:
    """All states of points, `[T, POINTS, SIZE]`."""
    return lax.scan(lambda c, _: (0.95 * c + 0.1 * jnp.roll(jnp.tanh(c), 1, -1), c), x, None, length=T)[1]


def points(x: Any) -> Any:
    """All points of all steps, `[T * POINTS, SIZE]`."""
    return stacked(x).reshape(-1, SIZE)


def centred(x: Any, axes: Any = 0) -> Any:
    """The distances from the mean."""
    return x - x.mean(axes, keepdims=True)


def two(x: Any) -> Any:
    """Two outputs of a loop, of different sizes, two points a step."""

    def step(c, _):
        return 0.95 * c, (c[:2], jnp.sin(c[:2, :4]) + 3)

    return [y.reshape(-1, y.shape[-1]) for y in lax.scan(step, x, None, length=T)[1]]


def crossed(x: Any, *, left: bool = True, right: bool = True) -> Any:
    """The covariance of two outputs, with one of them or both around its mean."""
    a, b = two(x)
    return (centred(a) if left else a).T @ (centred(b) if right else b)


def between_steps(x: Any) -> Any:
    """Each step is one observation of all its entries: nothing is summed within a step."""
    ys = stacked(x)[:, :3, 0]
    return jnp.cov(ys, rowvar=False)


CASES: dict[str, Callable[[Any], Any]] = {
    "jnp.cov": lambda x: jnp.cov(points(x), rowvar=False),
    "jnp.cov of rows": lambda x: jnp.cov(points(x).T, bias=True),
    "jnp.corrcoef": lambda x: jnp.corrcoef(points(x), rowvar=False),
    "a product": lambda x: centred(points(x)).T @ centred(points(x)),
    "a late center": lambda x: (lambda y: (y - (y.max(0) + 1)).T @ (y - 2 * y.mean(0)))(points(x)),
    "a scalar center": lambda x: (lambda y: (y - y.max()).T @ (y - y.mean()))(points(x)),
    "two outputs": crossed,
    "the first around its mean": lambda x: crossed(x, right=False),
    "the second around its mean": lambda x: crossed(x, left=False),
    "with the mean": lambda x: (jnp.cov(points(x), rowvar=False), points(x).mean(0), points(x).sum(0)),
    "between steps": between_steps,
    "of steps that are left": lambda x: jnp.cov(stacked(x)[5:-3].reshape(-1, SIZE), rowvar=False),
    "backwards": lambda x: jnp.cov(stacked(x)[::-1].reshape(-1, SIZE), rowvar=False),
    "several dimensions": lambda x: (lambda y: jnp.einsum("tpi,tpj->ij", y, y))(centred(stacked(x), (0, 1))),
    "several that are left": lambda x: (lambda y: jnp.einsum("tpi,tqj->piqj", y, y))(centred(stacked(x)[:, :3])),
    "a transpose of the result": lambda x: (lambda y: jnp.einsum("tpi,tqj->ipqj", y, y))(centred(stacked(x)[:, :3])),
    "over time alone": lambda x: jnp.einsum("tp,tqj->pqj", centred(stacked(x)[:, :4, 0]), centred(stacked(x)[:, 2:4])),
}


def is_fused(f: Callable[[Any], Any], *args: Any, **options: Any) -> bool:
    """Whether a covariance is accumulated, and no array over all steps is left."""
    report = ag.explain(f, **options)(*args)
    return any("covariance" in d.what for d in report.fired) and not made(
        jax.make_jaxpr(ag.optimize(f, **options))(*args).jaxpr, T * 12
    )


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, and as well as in two passes."""
    free_prices("into loops", monkeypatch.setattr)
    f, x = CASES[name], normal(0, POINTS, SIZE)
    assert is_fused(f, x)
    with jax.enable_x64(True):
        truth = jax.tree.map(np.asarray, jax.jit(f)(x.astype(np.float64)))
    natural, got = jax.jit(f)(x), jax.jit(ag.optimize(f))(x)
    for t, n, g in zip(*map(jax.tree.leaves, (truth, natural, got)), strict=True):
        allowed = 2 * np.abs(n - t).max() + 4e-6 * np.abs(t).max()
        assert np.abs(np.asarray(g, np.float64) - t).max() <= allowed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are as wide as those of a variance; results keep their type."""
    free_prices("into loops", monkeypatch.setattr)
    with jax.enable_x64(True):
        x = normal(0, POINTS, SIZE).astype(dtype)
        f = CASES["a product"]
        got, want = jax.jit(ag.optimize(f))(x), jax.jit(f)(x)
        assert got.dtype == want.dtype == dtype
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(got / scale, want / scale, atol=1e-12 if dtype == "float64" else 2e-2)


def test_a_mean_far_from_zero_costs_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points around 10,000 with a deviation of one: products are merged, squares are not subtracted."""
    free_prices("into loops", monkeypatch.setattr)

    def f(x):
        ys = lax.scan(lambda c, _: (10_000 + 0.99 * jnp.roll(c - 10_000, 1, 0), c), x, None, length=T)[1]
        return jnp.cov(ys.reshape(-1, SIZE), rowvar=False)

    x = normal(0, POINTS, SIZE) + np.float32(1e4)
    assert is_fused(f, x)
    with jax.enable_x64(True):
        truth = jax.tree.map(np.asarray, jax.jit(f)(x.astype(np.float64)))
    natural, got = (np.abs(np.asarray(jax.jit(g)(x), np.float64) - truth).max() for g in (f, ag.optimize(f)))
    assert got <= 1.1 * natural + 1e-6


# A transformation, the function, and whether a covariance is accumulated: in the optimised function that is
# transformed, and in the transformed function that is optimised.
FORMS: dict[str, tuple[Callable[[Any], Callable[[Any], Any]], str, bool, bool]] = {
    "jit": (lambda g: lambda x: jax.jit(g)(x[0]), "jnp.cov", True, True),
    "in a scan": (lambda g: lambda x: lax.map(g, x), "jnp.cov", True, True),
    "in a branch": (lambda g: lambda x: lax.cond(x[0, 0, 0] > 9, lambda x: x[:SIZE], g, x[0]), "jnp.cov", True, True),
    "checkpoint": (lambda g: lambda x: jax.checkpoint(g)(x[0]), "jnp.cov", True, True),
    # a product with a batch dimension is none of these
    "vmap": (jax.vmap, "jnp.cov", True, False),
    # its tangent is a product of two outputs with one another
    "jvp": (lambda g: lambda x: jax.jvp(g, (x[0],), (x[1],))[1], "two outputs", False, True),
    # what the gradient is made of is all states
    "grad": (lambda g: jax.vmap(jax.grad(lambda x: (g(x) ** 2).sum())), "jnp.cov", False, False),
}


@pytest.mark.parametrize("name", FORMS)
def test_under_transformations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and derivatives of the optimised function are those of the natural one, accumulated or not."""
    free_prices("into loops", monkeypatch.setattr)
    form, function, before, after = FORMS[name]
    f, x = CASES[function], normal(0, POINTS, SIZE)
    both = jnp.stack([x, 1.3 * x])
    reports: list[Any] = []
    optimised = partial(ag.optimize, on_report=reports.append)
    want = jax.jit(form(f))(both)
    for got, accumulates in ((form(optimised(f)), before), (optimised(form(f)), after)):
        reports.clear()
        np.testing.assert_allclose(jax.jit(got)(both), want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
        assert reports
        assert any("covariance" in d.what for report in reports for d in report.fired) == accumulates


MISSES: dict[str, Callable[[Any], Any]] = {
    "not over time": lambda x: (lambda y: jnp.einsum("tpi,tpj->tij", y, y))(centred(stacked(x))),
    "a center for each point": lambda x: (lambda y: jnp.einsum("tpi,tpj->ij", y, y))(centred(stacked(x))),
    "the steps in another order": lambda x: centred(points(x))[::-1].T @ centred(points(x)),
    "a step later": lambda x: (lambda y: centred(y[1:]).T @ centred(y[:-1]))(stacked(x)[:, :3, 0]),
    "steps beside points": lambda x: (lambda y: jnp.einsum("tpi,ptj->ij", y, y))(centred(stacked(x)[:POINTS], (0, 1))),
    "a transpose of the rest": lambda x: (lambda y: lax.dot_general(y.transpose(0, 2, 1), y, (((0,), (0,)), ((), ()))))(
        centred(stacked(x)[:, :3])
    ),
    "scaled": lambda x: (lambda y: jnp.einsum("pi,pj->ij", y * y.std(0), y))(centred(points(x))),
    "a square": lambda x: (lambda y: jnp.einsum("pi,pj->ij", y * y, y))(centred(points(x))),
}


def product(f: Callable[[Any], Any], x: Any) -> Any:
    """The decision about the one product after the loop."""
    (found,) = (d for d in ag.explain(f)(x).decisions if d.rule == "loop-fusion" and "dot_general" in d.what)
    return found


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no such product, or not seen to be one, waits for its center as ever, and has the natural results."""
    free_prices("into loops", monkeypatch.setattr)
    f, x = MISSES[name], normal(0, POINTS, SIZE)
    decision = product(f, x)
    # The points are stacked for the deviations that the scaled ones are multiplied with; nothing is saved there.
    reason = (
        "the stacked output is needed as a whole anyway" if name == "scaled" else "it needs a result of the whole loop"
    )
    assert (decision.fired, decision.reason) == (False, reason)
    got, want = jax.jit(ag.optimize(f))(x), jax.jit(f)(x)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-5 * np.abs(want).max())


def test_a_center_for_each_step_needs_no_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known within the step: the products of the steps are added up."""
    free_prices("into loops", monkeypatch.setattr)

    def f(x: Any) -> Any:
        y = centred(stacked(x), 1)
        return jnp.einsum("tpi,tpj->ij", y, y)

    x = normal(0, POINTS, SIZE)
    decision = product(f, x)
    assert decision.fired
    assert "(add)" in decision.what
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), jax.jit(f)(x), rtol=1e-3, atol=1e-3)


def test_strict_leaves_them() -> None:
    """It is a sum in another order."""
    f, x = CASES["jnp.cov"], normal(0, POINTS, SIZE)
    assert not is_fused(f, x, numerics="strict")
