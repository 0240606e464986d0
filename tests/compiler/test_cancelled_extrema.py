"""Extrema that cancel have no gradient: which are found, in which spellings, and which are left."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.level import Level
from aerogel.compiler.passes.cancelled_extrema import CancelledExtrema
from aerogel.compiler.residuals.cancelling import Cancelling
from benchmarks._case import normal

Formula = Callable[..., Any]
N, V = 24, 60
Z, T = normal(0, N, V), normal(1, N, V)
Q = tuple(normal(k, 2, 3, 16, 8) for k in (2, 3, 4))
Y = np.random.default_rng(5).integers(0, V, N).astype(np.int32)


def softmax(z: Any, axis: int = -1) -> Any:
    """As one writes it."""
    e = jnp.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softmax_of_expanded(z: Any, axis: int) -> Any:
    """The same without `keepdims`."""
    e = jnp.exp(z - jnp.expand_dims(z.max(axis), axis))
    return e / jnp.expand_dims(e.sum(axis), axis)


def log_softmax(z: Any) -> Any:
    """As one writes it."""
    z = z - jnp.max(z, axis=-1, keepdims=True)
    return z - jnp.log(jnp.sum(jnp.exp(z), axis=-1, keepdims=True))


def shifted(z: Any) -> tuple[Any, Any]:
    """The logarithm of the sum of exponentials of shifted logits, and these."""
    z = z - z.max(1, keepdims=True)
    return jnp.log(jnp.exp(z).sum(1)), z


def logsumexp(z: Any, axis: int = -1, t: float = 1.0) -> Any:
    """As one writes it, at a temperature."""
    m = z.max(axis, keepdims=True)
    return m + t * jnp.log(jnp.exp((z - m) / t).sum(axis, keepdims=True))


def attention(q: Any, k: Any, v: Any) -> Any:
    """Over masked places, by einsum."""
    s = jnp.einsum("bhtd,bhsd->bhts", q, k) / 8
    return jnp.einsum("bhts,bhsd->bhtd", softmax(jnp.where(jnp.tri(16) > 0, s, -1e9)), v)


def by_minimum(z: Any) -> Any:
    """`-logsumexp(-z)`."""
    m = z.min(1, keepdims=True)
    return m - jnp.log(jnp.exp(-(z - m)).sum(1, keepdims=True))


def weighted(z: Any, t: Any) -> Any:
    """A mixture: weights stand in the sum."""
    m = jnp.max(z, 1)
    return m + jnp.log((t**2 * jnp.exp(z - m[:, None])).sum(1))


SPELLINGS: dict[str, tuple[Formula, tuple[Any, ...], int]] = {
    "softmax": (softmax, (Z,), 1),
    "softmax over columns": (lambda z: softmax_of_expanded(z, 0), (Z,), 1),
    "softmax under vmap": (jax.vmap(lambda z: softmax(z, 0)), (Z,), 1),
    "logsumexp": (logsumexp, (Z,), 1),
    "logsumexp of all": (lambda z: (lambda m: m + jnp.log(jnp.exp(z - m).sum()))(z.max()), (Z,), 1),
    "logsumexp over two axes": (lambda q: logsumexp(q, (1, 3)), Q[:1], 1),
    "logsumexp at a temperature": (lambda z: logsumexp(z, 1, 0.5), (Z,), 1),
    "logsumexp under vmap": (jax.vmap(lambda z: jnp.max(z) + jnp.log(jnp.sum(jnp.exp(z - jnp.max(z))))), (Z,), 1),
    "by the minimum": (by_minimum, (Z,), 1),
    "weights": (weighted, (Z, T), 1),
    "cross-entropy, counted": (lambda z: -log_softmax(z)[jnp.arange(N, dtype=np.int32), Y], (Z,), 1),
    "cross-entropy, shifted": (lambda z: shifted(z)[0] - shifted(z)[1][jnp.arange(N, dtype=np.int32), Y], (Z,), 1),
    "cross-entropy, shifted, each": (
        lambda z: jax.vmap(lambda s, z, y: s - z[y])(*shifted(z), Y),
        (Z,),
        1,
    ),
    "cross-entropy, along an axis": (lambda z: -jnp.take_along_axis(log_softmax(z), Y[:, None], 1), (Z,), 1),
    "cross-entropy under vmap": (lambda z: jax.vmap(lambda z, y: -log_softmax(z)[y])(z, Y), (Z,), 1),
    "cross-entropy, one-hot": (lambda z: -(jax.nn.one_hot(Y, V) * jnp.log(softmax(z))).sum(1), (Z,), 1),
    "cross-entropy by logsumexp": (lambda z: logsumexp(z)[:, 0] - z[jnp.arange(N, dtype=np.int32), Y], (Z,), 1),
    "divergence": (lambda z, t: (softmax(t) * (log_softmax(t) - log_softmax(z))).sum(1), (Z, T), 2),
    "entropy": (lambda z: -(softmax(z) * log_softmax(z)).sum(1), (Z,), 1),
    "attention": (attention, Q, 1),
    "in a step": (lambda z: lax.scan(lambda c, x: (softmax(c + x), None), z, T[None].repeat(3, 0))[0], (Z,), 0),
    "in a jit": (jax.jit(softmax), (Z,), 1),
    "checkpointed": (jax.checkpoint(softmax), (Z,), 1),
}


def gradient(f: Formula, args: tuple[Any, ...]) -> Formula:
    """Of a weighted sum of results."""
    return jax.grad(lambda *a: jnp.vdot(jnp.cos(jnp.arange(f(*a).size, dtype=f(*a).dtype)), f(*a)), range(len(args)))


def found(f: Formula, *args: Any, **options: Any) -> tuple[int, int]:
    """How many extrema the pass found to cancel, and how many not."""
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(f, on_report=reports.append, **options))(*args)
    mine = [d for d in reports[0].decisions if d.rule == "cancelled-extrema"]
    return sum(d.fired for d in mine), sum(not d.fired for d in mine)


def ties(jaxpr: Any) -> int:
    """How many comparisons with extrema a program makes, in its calls and loops too."""
    inner = [getattr(p, "jaxpr", p) for eqn in jaxpr.eqns for p in eqn.params.values() if hasattr(p, "eqns")]
    return sum(eqn.primitive.name == "eq" for eqn in jaxpr.eqns) + sum(map(ties, inner))


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    """Each is found, nothing compares with the extremum any more, and the gradient is as near to float64 as before."""
    f, args, count = SPELLINGS[name]
    g = gradient(f, args)
    alone = ag.optimize(g, passes=(CancelledExtrema(),))
    assert found(g, *args, passes=(CancelledExtrema(),)) == (count, 0) or not count
    if count and "one-hot" not in name:
        assert ties(jax.make_jaxpr(g)(*args).jaxpr) >= count
        assert ties(jax.make_jaxpr(alone)(*args).jaxpr) == 0
    for ours in (alone, ag.optimize(g)):
        agrees(g, ours, args)


def agrees(g: Formula, ours: Formula, args: tuple[Any, ...]) -> None:
    """Within twice the error of plain JAX against float64."""
    with jax.enable_x64(True):
        truth = jax.jit(g)(*(jnp.asarray(np.asarray(a), np.float64) for a in args))
    for a, b, t in zip(*(jax.tree.leaves(x) for x in (jax.jit(g)(*args), jax.jit(ours)(*args), truth)), strict=True):
        assert a.dtype == b.dtype
        error, size = float(np.abs(a - np.asarray(t)).max()), float(np.abs(t).max())
        assert float(np.abs(b - np.asarray(t)).max()) <= 2 * error + 1e-6 * size


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float64])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (4, 1), (0, 6), (1, 1)])
def test_types_and_sizes(dtype: Any, shape: tuple[int, ...]) -> None:
    """Other floats, rows of one entry and no rows."""
    with jax.enable_x64(dtype == jnp.float64):
        z = jnp.asarray(normal(6, *shape)).astype(dtype)
        g = gradient(logsumexp, (z,))
        (want,), (got,) = jax.jit(g)(z), jax.jit(ag.optimize(g, passes=(CancelledExtrema(),)))(z)
        assert got.dtype == want.dtype
        eps = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=20 * eps, atol=20 * eps)


def test_ties_that_are_many() -> None:
    """Where several entries are the maximum, too."""
    z = jnp.round(jnp.asarray(Z))
    agrees(gradient(logsumexp, (z,)), ag.optimize(gradient(logsumexp, (z,))), (z,))


def dropped(z: Any) -> Any:
    """A label out of bounds is dropped by one part of the loss alone."""
    total, z = shifted(z)
    return total - z.at[jnp.arange(N, dtype=np.int32), Y].get(mode="fill", fill_value=0.0)


NEAR: dict[str, Formula] = {
    "a maximum": lambda z: z.max(1),
    "without the maximum behind": lambda z: jnp.log(jnp.exp(z - z.max(1, keepdims=True)).sum(1)),
    "something is added": lambda z: (lambda e: e / (e.sum(1, keepdims=True) + 1e-6))(
        jnp.exp(z - z.max(1, keepdims=True))
    ),
    "a quotient": lambda z: z / z.max(1, keepdims=True),
    "another row's sum": lambda z: (lambda e: e / e[::-1].sum(1, keepdims=True))(jnp.exp(z - z.max(1, keepdims=True))),
    "sums over columns": lambda z: (lambda e: e / e.sum(0, keepdims=True))(jnp.exp(z - z.max(1, keepdims=True))),
    "squares in the sum": lambda z: (lambda e: e / (e**2).sum(1, keepdims=True))(jnp.exp(z - z.max(1, keepdims=True))),
    "a transposed sum": lambda z: (lambda e: e / e.sum(0)[:, None])(jnp.exp(z[:, :N] - z[:, :N].max(1, keepdims=True))),
    "dropped": dropped,
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name: str) -> None:
    """What does not cancel is left, and is as it was."""
    f = NEAR[name]
    g = gradient(f, (Z,))
    assert found(g, Z) == (0, 1)
    agrees(g, ag.optimize(g), (Z,))


def test_strict() -> None:
    """Zero is not what rounding leaves."""
    assert found(gradient(softmax, (Z,)), Z, numerics="strict") == (0, 0)


READ: dict[str, tuple[Formula, bool]] = {
    "itself": (lambda x, r: x - x, True),
    "a row over a sum": (lambda x, r: (r - r / x.sum(1) * x.sum(1))[:, None], True),
    "a row over a sum, inside": (lambda x, r: (r - ((r / x.sum(1))[:, None] * x).sum(1))[:, None], True),
    "a row over another sum": (lambda x, r: (r - ((r / x.sum(0))[:, None] * x).sum(1))[:, None], False),
    "a number": (lambda x, r: (x * 2 - x - x) * r[:, None], True),
    "powers": (lambda x, r: x * r[:, None] ** -2 * r[:, None] ** 2 - x, True),
    "another axis": (lambda x, r: x.sum(1)[:, None] - x.sum(0)[:, None], False),
    "turned": (lambda x, r: x - x.T, False),
    "counted": (lambda x, r: ((0 * x + r[:, None]).sum(1) - 6 * r)[:, None], True),
    "counted, of fewer": (lambda x, r: (jnp.broadcast_to(r[:, None], (6, 3)).sum(1) - 6 * r)[:, None], False),
    "rows and columns": (lambda x, r: x.sum(0)[None, :] - x.sum(1)[None, :], False),
    "almost": (lambda x, r: x * 0.1 + x * 0.2 - x * 0.3, False),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_zero(name: str) -> None:
    """Values of rows and columns, read as sums of products."""
    f, is_zero = READ[name]
    jaxpr = jax.make_jaxpr(f)(np.ones((6, 6), np.float32), np.ones(6, np.float32)).jaxpr
    frame = Cancelling(Level(jaxpr), (6, 6), frozenset({1}))
    assert (not frame.read(jaxpr.outvars[0])) == is_zero
