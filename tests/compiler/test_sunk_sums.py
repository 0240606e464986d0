"""Large sums that loops carry, of which little is wanted: each step adds up what is wanted of its share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import ClosedJaxpr
from aerogel.compiler.hoisting.open_steps import with_open_steps
from aerogel.compiler.hoisting.sunk_sums import with_sum_inside
from aerogel.compiler.level import Level, apply_edits
from aerogel.compiler.passes import streaming
from aerogel.compiler.passes.masked_columns import MaskedColumns
from aerogel.compiler.passes.streaming import Streaming
from aerogel.compiler.program import inner_jaxprs
from aerogel.compiler.streams.stream_plan import Sizes
from compiler.loop_patterns import normal
from compiler.programs_of import traced
from compiler.test_sunk_constants import POINTS, SIZES, M, N, close, distances, sizes_in, softmin, streamed

LARGE = N * M
MANY = normal(0, 2064, 2), normal(1, 2048, 2)  # just large enough
ALL = 2064 * 2048
stored = jax.checkpoint  # a step stores what it begins with; else `residual-choice` sees to that, at larger sizes


def dual(x: Any, y: Any) -> Any:
    """Sinkhorn's steps on distances that are made once."""
    d = distances(x, y)
    return lax.scan(stored(lambda h, _: (softmin(d, h), None)), jnp.zeros(len(x)), None, length=2)[0].sum()


def of_the_plan(x: Any, y: Any) -> Any:
    """What is read of the distances behind the loop, too, and a `fori_loop`."""
    d = distances(x, y)
    h = lax.fori_loop(0, 2, stored(lambda _, h: softmin(d, h)), jnp.zeros(len(x)))
    return jnp.sum(jnp.exp(h[:, None] - d) * d)


def both_ways(x: Any, y: Any) -> Any:
    """A step reads the distances and their transpose."""
    d = jax.vmap(lambda a: jax.vmap(lambda b: jnp.vdot(a - b, a - b))(y))(x)

    def step(state: Any, _: Any) -> Any:
        f, g = state
        new = -jax.nn.logsumexp(g - d, axis=1), -jax.nn.logsumexp(f - d.T, axis=1)
        return jax.tree.map(lambda a, b: (a + b) / 2, state, new), None

    (f, g), _ = lax.scan(stored(step), (jnp.zeros(len(x)), jnp.zeros(len(y))), None, length=2)
    return f.mean() + g.mean()


def by_a_product(x: Any, y: Any) -> Any:
    """Distances by a product of few terms."""
    d = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T
    return lax.scan(stored(lambda h, _: (softmin(d, h), None)), jnp.zeros(len(x)), None, length=2)[0].sum()


def of_two_costs(x: Any, y: Any) -> Any:
    """Two large constants, two sums."""
    d, e = distances(x, y), jnp.abs(x[:, None, 0] - y[:, 0])

    def step(h: Any, _: Any) -> Any:
        return softmin(d, h) + softmin(e, h), None

    return lax.scan(stored(step), jnp.zeros(len(x)), None, length=3)[0].sum()


@pytest.fixture
def any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the smallest sizes it is not worth it."""
    monkeypatch.setattr(streaming, "MADE_AGAIN", 100)


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "gradient": lambda f: jax.value_and_grad(f, (0, 1)),
    "jit": lambda f: jax.value_and_grad(jax.jit(f), (0, 1)),
    "vmap": lambda f: jax.vmap(jax.grad(f, (0, 1))),
    "cotangents": lambda f: lambda x, y: jax.vjp(f, x, y)[1](jnp.sin(x[0, 0])),
}


@pytest.mark.parametrize("f", [dual, of_the_plan, both_ways, by_a_product, of_two_costs])
@pytest.mark.parametrize("transformed", TRANSFORMED)
@pytest.mark.usefixtures("any_price")
def test_a_gradient_holds_nothing_of_all_pairs(f: Callable[..., Any], transformed: str) -> None:
    """Neither the distances nor their cotangent, which the backward loop carried."""
    slope, args = TRANSFORMED[transformed](f), MANY
    if transformed == "vmap":
        args = tuple(jnp.stack([x, 1.5 * x]) for x in MANY)
    assert max(sizes_in(traced(slope, *args).jaxpr)) >= ALL
    assert max(sizes_in(traced(ag.optimize(slope), *args).jaxpr)) < ALL // 3


@pytest.mark.parametrize("f", [dual, of_the_plan, both_ways, by_a_product, of_two_costs])
@pytest.mark.usefixtures("any_price")
def test_its_numbers(f: Callable[..., Any]) -> None:
    """As exact as plain JAX."""
    slope = jax.value_and_grad(f, (0, 1))
    close(ag.optimize(slope), slope, MANY)


def test_steps_without_a_checkpoint_store_nothing_of_all_pairs() -> None:
    """Exponentials are computed again, in memory that all steps share."""

    def f(x: Any, y: Any) -> Any:
        d = distances(x, y)
        return lax.scan(lambda h, _: (softmin(d, h), None), jnp.zeros(len(x)), None, length=10)[0].sum()

    points = (jax.ShapeDtypeStruct((8192, 3), jnp.float32),) * 2
    report = ag.explain(jax.grad(f, (0, 1)))(*points)
    assert {"residual-choice", "streaming"} <= {one.rule for one in report.fired}
    assert not any(one.rule == "loop-segments" for one in report.fired)
    assert report.after.peak_bytes < 2 * 8192**2


def weighted(total: Any, w: Any, v: Any) -> Any:
    """What is wanted of a sum: a vector, turned and scaled."""
    return jnp.einsum("ij,j->i", total * w[:, None], v), (2 * total).T.sum(1)


def accumulated(x: Any, y: Any, init: Callable[..., Any], end: Callable[..., Any]) -> Any:
    """A loop that adds up kernels of points that move."""

    def step(state: Any, t: Any) -> Any:
        total, z = state
        return (total + jnp.exp(-distances(z, y)), z + 0.1 * t), None

    (total, z), _ = lax.scan(step, (init(x, y), x), jnp.arange(3.0))
    return end(total, z, x, y)


def zeros(x: Any, y: Any) -> Any:
    """The sum begins with nothing."""
    return jnp.zeros((len(x), len(y)), x.dtype)


def ends(total: Any, z: Any, x: Any, y: Any) -> Any:
    """Two vectors."""
    return weighted(total, x[:, 0], y[:, 0])


def and_more(total: Any, z: Any, x: Any, y: Any) -> Any:
    """Something is added to the sum before, and to a part of it."""
    return weighted(jnp.sin(distances(x, y)) + total, x[:, 0], y[:, 0])


def inside(f: Callable[..., Any], args: Any) -> Any:
    """The program with the first sum inside that may be, closed; None if there is none."""
    program = traced(f, *args)
    level = Level(program.jaxpr)
    found = [edit for k in range(len(level.eqns)) if (edit := with_sum_inside(level, k, LARGE * 4)) is not None]
    return ClosedJaxpr(apply_edits(program.jaxpr, found[:1])[0], program.consts) if found else None


@pytest.mark.parametrize("init", [zeros, distances])
@pytest.mark.parametrize("end", [ends, and_more])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_what_a_loop_adds_up_by_itself(init: Callable[..., Any], end: Callable[..., Any], dtype: str) -> None:
    """Also what it begins with, and what is added to it later."""
    with jax.enable_x64(dtype == "float64"):
        args = tuple(jnp.asarray(x, dtype) for x in POINTS)
        f = lambda x, y: accumulated(x, y, init, end)  # noqa: E731
        new = inside(f, args)
        assert carried(new.jaxpr) == 0 < carried(traced(f, *args).jaxpr)
        outs = jax.core.eval_jaxpr(new.jaxpr, new.consts, *args)
        for got, want in zip(outs, f(*args), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def carried(jaxpr: Any) -> int:
    """How many values of all pairs loops carry."""
    return sum(v.aval.size >= LARGE for eqn in jaxpr.eqns if eqn.primitive.name == "scan" for v in eqn.outvars)


def a_result(total: Any, z: Any, x: Any, y: Any) -> Any:
    """All of it."""
    return total


def squared(total: Any, z: Any, x: Any, y: Any) -> Any:
    """Not linear."""
    return (total**2).sum(1)


def of_the_end(total: Any, z: Any, x: Any, y: Any) -> Any:
    """Weights that only the end of the loop knows."""
    return (total * distances(z, y)).sum(1)


def of_dear_weights(total: Any, z: Any, x: Any, y: Any) -> Any:
    """Weights that each step would have to compute again."""
    return (total * jnp.exp(distances(x, y))).sum(1)


def in_less_digits(total: Any, z: Any, x: Any, y: Any) -> Any:
    """Summed up in float32."""
    return total.astype(jnp.bfloat16).sum(1)


@pytest.mark.parametrize("end", [a_result, squared, of_the_end, of_dear_weights, in_less_digits])
def test_other_sums_stay(end: Callable[..., Any]) -> None:
    """What a step cannot have, or is wanted whole."""
    assert inside(lambda x, y: accumulated(x, y, zeros, end), POINTS) is None


def test_strict_numerics_keeps_the_order_of_sums() -> None:
    """Sums stay as they are."""
    slope = jax.grad(dual)
    strict = ag.optimize(slope, rules=[], passes=(Streaming(SIZES),), numerics="strict")
    assert carried(traced(strict, *POINTS).jaxpr) == carried(traced(slope, *POINTS).jaxpr) > 0


def shared_by_the_step(x: Any, y: Any) -> Any:
    """A training loop: its step computes a value and, behind a checkpoint, its gradient."""
    d = distances(x, y)

    def step(h: Any, _: Any) -> Any:
        loss = jax.checkpoint(lambda h: jnp.exp(h[:, None] - d).sum())
        return h - 0.1 * jax.grad(loss)(h), loss(h)

    return lax.scan(step, jnp.zeros(len(x)), None, length=3)


def test_a_checkpoint_stays_beside_what_it_computes_again() -> None:
    """Where the step makes the same outside of it; else it is opened."""
    for f, stays in ((shared_by_the_step, True), (jax.grad(dual), False)):
        jaxpr = traced(f, *POINTS).jaxpr
        opened = with_open_steps(jaxpr, LARGE * 4)
        held = [eqn.primitive.name for loop in opened.eqns for body in inner_jaxprs(loop) for eqn in body.eqns]
        assert any("remat" in name or name == "checkpoint" for name in held) == stays


def test_points_of_no_number() -> None:
    """Nothing to sum up."""
    none = normal(0, 0, 2), normal(1, M, 2)
    got, want = (jax.jit(g)(*none) for g in (streamed(jax.grad(dual)), jax.grad(dual)))
    np.testing.assert_array_equal(got, want)


def causal(q: Any, k: Any, v: Any) -> Any:
    """Attention of many heads, as it is written: one mask for all."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / 8
    scores = jnp.where(jnp.tril(jnp.ones((q.shape[1],) * 2, bool)), scores, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)


@pytest.mark.parametrize("shape", [(2, 8192, 4, 32), (4, 2048, 8, 64)])
@pytest.mark.parametrize("gradient", [False, True])
def test_a_mask_that_all_heads_share_is_made_in_their_blocks(shape: tuple[int, ...], gradient: bool) -> None:
    """So what it hides is left out."""
    f = jax.grad(lambda *a: jnp.sin(causal(*a)).sum(), (0, 1, 2)) if gradient else causal
    report = ag.explain(f)(*(jax.ShapeDtypeStruct(shape, jnp.float32),) * 3)
    assert {"streaming", "masked-columns"} <= {one.rule for one in report.fired}
    assert report.after.flops < 0.8 * report.before.flops


@pytest.mark.parametrize("gradient", [False, True])
def test_its_numbers_are_those_of_the_whole(gradient: bool) -> None:
    """Of heads and examples that are few and short."""
    f = jax.grad(lambda *a: jnp.sin(causal(*a)).sum(), (0, 1, 2)) if gradient else causal
    args = tuple(normal(n, 2, 256, 4, 16) for n in range(3))
    sizes = Sizes(1 << 16, at_any_price=True)
    close(ag.optimize(f, rules=[], passes=(Streaming(sizes), MaskedColumns())), f, args)


def test_constants_of_other_loops_stay_in_their_cache() -> None:
    """Beside heads in blocks, whose mask is no larger."""

    def f(q: Any, k: Any, v: Any, x: Any, y: Any) -> Any:
        d = distances(x, y)
        return causal(q, k, v), lax.scan(lambda h, _: (softmin(d, h), None), jnp.zeros(len(x)), None, length=9)[0]

    heads, points = ((4, 2048, 8, 64),) * 3, ((1024, 2),) * 2
    report = ag.explain(f)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*heads, *points)))
    made = [one.what for one in report.fired if "is made in the steps" in one.what]
    assert made
    assert not any("1024,1024" in what for what in made)
