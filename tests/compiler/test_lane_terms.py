"""What lanes give to what they share is one product: what is found, what is left, the same results."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import jaxprs_in_params
from aerogel.compiler.passes.equal_cases import EqualCases
from aerogel.compiler.passes.lane_terms import LaneTerms
from benchmarks._case import normal

LANES, N = 48, 24
W, V, B = normal(0, N, N), normal(1, N, N), normal(2, N)
X, M = normal(3, LANES, N), normal(4, LANES, 3, N)
P, CHOICE = normal(5, LANES) > 0, np.random.default_rng(6).integers(0, 3, LANES).astype(np.int32)


def tied(x: Any, w: Any) -> Any:
    """Weights that are used three times, once turned, once subtracted."""
    return w.T @ jnp.tanh(x @ w) - w @ x


def by_two(x: Any, w: Any) -> Any:
    """Lanes along two axes."""
    f = lambda p, x: lax.cond(p, lambda x: jnp.tanh(x @ w) @ w, lambda x: x, x)  # noqa: E731
    return jax.vmap(jax.vmap(f))(P.reshape(6, 8), x.reshape(6, 8, N))


def within(x: Any, w: Any) -> Any:
    """A branch in a branch."""
    inner = lambda i, x: lax.cond(i > 0, lambda x: jnp.tanh(w @ x), lambda x: x, x)  # noqa: E731
    return jax.vmap(lambda p, i, x: lax.cond(p, inner, lambda i, x: -(w @ x), i, x))(P, CHOICE, x)


def lanes(f: Callable[..., Any], *choose: Any) -> Callable[..., Any]:
    """A function of a choice, a lane and weights, over lanes."""
    return lambda x, *w: jax.vmap(lambda *a: f(*a, *w))(*choose, x)


SPELLINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "cond": (lanes(lambda p, x, w: lax.cond(p, lambda x: jnp.tanh(x @ w) @ w, lambda x: x, x), P), (X, W), 1),
    "one product": (lanes(lambda p, x, w: lax.cond(p, lambda x: w @ x, lambda x: x, x), P), (X, W), 1),
    "both branches": (
        lanes(lambda p, x, w, v: lax.cond(p, lambda x: jnp.tanh(x @ w), lambda x: jnp.sin(v @ x), x), P),
        (X, W, V),
        2,
    ),
    "switch": (
        lanes(lambda i, x, w: lax.switch(i, (jnp.sin, lambda x: w @ x, lambda x: jnp.tanh(w.T @ x) @ w), x), CHOICE),
        (X, W),
        1,
    ),
    "beside a bias": (
        lanes(lambda p, x, w, b: lax.cond(p, lambda x: jnp.tanh(x @ w + b) @ w, lambda x: x + b, x), P),
        (X, W, B),
        1,
    ),
    "matrices": (lanes(lambda p, x, w: lax.cond(p, lambda x: jnp.tanh(x @ w) @ w, lambda x: x, x), P), (M, W), 1),
    "tied": (lanes(lambda p, x, w: lax.cond(p, tied, lambda x, w: x, x, w), P), (X, W), 1),
    "two axes of lanes": (by_two, (X, W), 1),
    "a branch in a branch": (within, (X, W), 1),
}


def gradient(f: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Of a sum, in all arguments."""
    return jax.grad(lambda *a: jnp.sin(f(*a)).sum(), range(len(args)))


def alone(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with this pass alone, after the one that shares the weights."""
    return ag.optimize(f, passes=(EqualCases(), LaneTerms()))


def products(f: Callable[..., Any], size: int, *args: Any) -> int:
    """How many products have as many entries."""

    def count(jaxpr: Any) -> int:
        own = [v for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general" for v in eqn.outvars]
        inner = (getattr(j, "jaxpr", j) for eqn in jaxpr.eqns for j in jaxprs_in_params(eqn.params))
        return sum(v.aval.size >= size for v in own) + sum(map(count, inner))

    return count(jax.make_jaxpr(f)(*args).jaxpr)


def agrees(f: Callable[..., Any], ours: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Within twice the error of plain JAX against float64."""
    with jax.enable_x64(True):
        truth = jax.jit(f)(*(jnp.asarray(a, np.float64) for a in args))
    for a, b, t in zip(*(jax.tree.leaves(x) for x in (jax.jit(f)(*args), jax.jit(ours)(*args), truth)), strict=True):
        assert a.dtype == b.dtype
        error, size = float(np.abs(a - np.asarray(t)).max()), float(np.abs(t).max())
        assert float(np.abs(b - np.asarray(t)).max()) <= 2 * error + 1e-6 * size


@pytest.mark.parametrize("name", SPELLINGS)
def test_lanes_are_summed_up_in_the_product(name: str) -> None:
    """No product has the weights of all lanes; each gradient is as near to float64 as before."""
    f, args, count = SPELLINGS[name]
    g = gradient(f, args)
    reports: list[Any] = []
    assert products(g, LANES * N * N, *args) > products(alone(g), LANES * N * N, *args) == 0
    jax.make_jaxpr(ag.optimize(g, passes=(EqualCases(), LaneTerms()), on_report=reports.append))(*args)
    assert sum(d.rule == "lane-terms" for d in reports[0].fired) == count
    for ours in (alone(g), ag.optimize(g)):
        agrees(g, ours, args)


def summed(f: Callable[..., Any]) -> Callable[..., Any]:
    """Over lanes, of outer products `a` and `b` of each lane, and a mask `p` of lanes."""

    def total(x: Any, p: Any) -> Any:
        return _sum(f(*(lax.dot_general(y, x, (((), ()), ((0,), (0,)))) for y in (x, jnp.sin(x))), p))

    return total


def _sum(x: Any) -> Any:
    """Over lanes, in its own type."""
    return lax.reduce_sum(x, (0,))


def masked(a: Any, p: Any, axes: tuple[int, ...] = (0,)) -> Any:
    """`a` where `p` is."""
    p = jnp.broadcast_to(jnp.expand_dims(p, [d for d in range(3) if d not in axes]), a.shape)
    return jnp.where(p, a, jnp.zeros((), a.dtype))


FORMS: dict[str, Callable[..., Any]] = {
    "a sum": summed(lambda a, b, p: a + b),
    "a difference": summed(lambda a, b, p: a - b),
    "the negative": summed(lambda a, b, p: -masked(a, p)),
    "subtracted": summed(lambda a, b, p: masked(a - masked(b, ~p), p)),
    "where it is not": summed(lambda a, b, p: masked(a, ~p)),
    "zeros where it is": summed(
        lambda a, b, p: jnp.where(jnp.broadcast_to(p[:, None, None], a.shape), jnp.zeros((), a.dtype), a)
    ),
    "turned": summed(lambda a, b, p: (masked(a, p).transpose(0, 2, 1) + b).transpose(0, 2, 1)),
}


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float64])
@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, dtype: Any) -> None:
    """Signs, masks and orders."""
    with jax.enable_x64(dtype == np.float64):
        f, x = FORMS[name], jnp.asarray(X, dtype)
        ours = ag.optimize(f, passes=(LaneTerms(),))
        assert products(f, LANES * N * N, x, P) > products(ours, LANES * N * N, x, P) == 0
        got, want = (np.asarray(jax.jit(h)(x, P), float) for h in (ours, f))
        np.testing.assert_allclose(got, want, atol=float(jnp.finfo(dtype).eps) * 200)


NEAR: dict[str, Callable[..., Any]] = {
    "read elsewhere": lambda x, p: (lambda a: (masked(a, p).sum(0), a))(
        lax.dot_general(x, x, (((), ()), ((0,), (0,))))
    ),
    "not zeros": summed(lambda a, b, p: jnp.where(jnp.broadcast_to(p[:, None, None], a.shape), a, 1.0)),
    "a mask of both factors": summed(lambda a, b, p: masked(a, p[:N, None] & p[None, :N], (1, 2))),
    "a mask of one factor": summed(lambda a, b, p: masked(a, p[:N], (1,)) + b),
    "not a product": summed(lambda a, b, p: masked(jnp.sin(a), p)),
    "a factor": summed(lambda a, b, p: a * b),
    "one product, no mask": summed(lambda a, b, p: a),
    "few entries": lambda x, p: summed(lambda a, b, p: masked(a, p))(x[:, :1], p),
    "rows are summed": lambda x, p: (x[:, :, None] * x[:, None, :] + 1).sum(1),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name: str) -> None:
    """What is no masked sum of products that are read once is left."""
    f = NEAR[name]
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(f, passes=(LaneTerms(),), on_report=reports.append))(X, P)
    assert not reports[0].fired


@pytest.mark.parametrize("shape", [(0, 4), (5, 0), (1, 1)])
def test_sizes(shape: tuple[int, int]) -> None:
    """No lanes, no entries, one of both."""
    x, p = np.ones(shape, np.float32), np.ones(shape[0], bool)
    for name in ("a sum", "the negative", "turned"):
        got, want = (jax.jit(h)(x, p) for h in (ag.optimize(FORMS[name], passes=(LaneTerms(),)), FORMS[name]))
        np.testing.assert_array_equal(got, want)


def test_a_branch_that_is_not_taken_may_be_no_number() -> None:
    """The square root of a negative number, in a lane that takes the other branch: it stands in neither gradient."""

    def loss(w: Any, v: Any) -> Any:
        def one(x: Any, p: Any) -> Any:
            return lax.cond(p > 0, lambda: jnp.tanh(w @ (x * jnp.sqrt(p))).sum(), lambda: jnp.tanh(v @ x).sum())

        return jax.vmap(one)(X[:, :N], jnp.linspace(-1, 1, LANES)).sum()

    w = jnp.cos(jnp.arange(float(N * N))).reshape(N, N)
    reports: list[Any] = []
    gradient = jax.grad(loss, (0, 1))
    got = jax.jit(ag.optimize(gradient, on_report=reports.append))(w, w)
    assert "lane-terms" in [d.rule for d in reports[0].fired]
    for x, y in zip(got, jax.jit(gradient)(w, w), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_strict() -> None:
    """No sum is taken in another order there."""
    reports: list[Any] = []
    f = FORMS["the negative"]
    jax.make_jaxpr(ag.optimize(f, passes=(LaneTerms(),), numerics="strict", on_report=reports.append))(X, P)
    assert not reports[0].decisions
