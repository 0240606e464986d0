"""A donated argument is overwritten behind its last reader, and nothing else changes."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler import DEFAULT_PASSES
from aerogel.compiler.level import Level
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes.late_writes import NAME
from aerogel.compiler.residuals.late_writes import late_writes, updates
from aerogel.compiler.rules.elementary.sine import cos_of_many, sin_of_many, tan_of_many

SIZES = (96, 96, 96, 96, 10)


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def weights(dtype: str = "float32", sizes: tuple[int, ...] = SIZES) -> list[Any]:
    """Those of a network."""
    pairs = itertools.pairwise(sizes)
    return [normal(k, *shape, dtype=dtype) / jnp.asarray(10, dtype) for k, shape in enumerate(pairs)]


def loss(params: list[Any], x: Any) -> Any:
    """A sum of what a network makes."""
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.square(x).mean().astype("float32")


def descent(params: list[Any], x: Any) -> Any:
    """A step of gradient descent."""
    value, slope = jax.value_and_grad(loss)(params, x)
    return value, jax.tree.map(lambda w, g: w - jnp.asarray(0.1, w.dtype) * g, params, slope)


def adam(state: Any, x: Any) -> Any:
    """A step of Adam."""
    params, moments = state
    value, slope = jax.value_and_grad(loss)(params, x)
    updates, moments = optax.adam(1e-2).update(slope, moments, params)
    return value, (optax.apply_updates(params, updates), moments)


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How many arguments are put in order."""
    return sum(d.rule == NAME for d in ag.explain(f, **options)(*args).fired)


def copies(f: Callable[..., Any], *args: Any) -> int:
    """How many square weights the compiled program copies, its first argument donated."""
    text = jax.jit(f, donate_argnums=0).lower(*args).compile().as_text() or ""
    return len(re.findall(r"f32\[(96,96|192,192)\]\S* copy\(%(?!bitcast|transpose)", text))


def agree(f: Callable[..., Any], *args: Any, rtol: float = 1e-6) -> None:
    """The results are those of the plain program."""
    for got, want in zip(*(jax.tree.leaves(jax.jit(h)(*args)) for h in (ag.optimize(f), f)), strict=True):
        np.testing.assert_allclose(np.asarray(got, "float64"), np.asarray(want, "float64"), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("step", [descent, adam])
def test_no_weight_is_copied(step: Any):
    """Of four products the three behind the first one read their weights on the way back."""
    params = weights()
    state = params if step is descent else (params, optax.adam(1e-2).init(params))
    x = normal(9, 32, 96)
    assert copies(step, state, x) >= 2
    assert copies(ag.optimize(step), state, x) == 0
    assert fired(step, state, x) == 2  # the last one is small
    agree(step, state, x)


def test_numbers_stay_what_they_are_bit_by_bit():
    """What is subtracted is zero, also from -0.0, infinities and NaN, whatever the product that is waited for holds."""
    w = normal(0, 64, 64).at[0, :5].set(jnp.array([-0.0, 0.0, jnp.inf, -jnp.inf, jnp.nan]))

    def f(w: Any, x: Any, g: Any) -> Any:
        return x @ w, jnp.where(g > 0, w, -w)

    x, g = normal(1, 32, 64).at[0, 0].set(jnp.nan), normal(2, 64, 64)
    assert fired(f, w, x, g) == 1
    got, want = (jax.jit(h)(w, x, g)[1] for h in (ag.optimize(f), f))
    np.testing.assert_array_equal(np.asarray(got).view("uint32"), np.asarray(want).view("uint32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_types(dtype: str):
    """Of all floats."""
    params, x = weights(dtype), normal(9, 32, 96, dtype=dtype)
    assert fired(descent, params, x) == 2
    agree(descent, params, x, rtol=1e-2 if dtype != "float32" else 1e-6)


def test_integers_and_an_index():
    """A table of integers from which rows are taken while it is counted up."""

    def f(table: Any, rows: Any) -> Any:
        return jnp.cumsum(table[rows], 0), table + 1

    table = jnp.arange(128 * 64, dtype=jnp.int32).reshape(128, 64)
    assert fired(f, table, jnp.arange(0, 128, 3)) == 1
    agree(f, table, jnp.arange(0, 128, 3))


def test_carries_of_loops():
    """A loop of training steps copies no weights either."""

    def train(params: list[Any], xs: Any) -> Any:
        def step(params: list[Any], x: Any) -> Any:
            return descent(params, x)[::-1]

        return lax.scan(step, params, xs)

    params, xs = weights(sizes=(192, 192, 192, 192, 10)), normal(9, 5, 32, 192)
    assert fired(train, params, xs) == 2
    assert copies(ag.optimize(train), params, xs) < copies(train, params, xs)
    agree(train, params, xs, rtol=1e-5)


def test_other_carries_are_left():
    """A small carry, and a large one that a sum reads, are copied: that costs less than the order."""

    def summed(x: Any) -> Any:
        return lax.scan(lambda c, _: (0.9 * c, jnp.sum(jnp.sort(c))), x, None, length=5)

    def small(w: Any, x: Any) -> Any:
        return lax.scan(lambda w, x: (0.9 * w, x @ w), w, x)

    assert fired(summed, normal(0, 100_000)) == 0
    assert fired(small, normal(0, 96, 96), normal(1, 5, 8, 96)) == 0


def test_derivatives_and_batches():
    """Gradients through a step, tangents, and a batch of steps, of what `optimize` returns."""
    params, x = weights(), normal(9, 32, 96)

    def after(f: Any) -> Any:
        return jax.grad(lambda params: loss(f(params, x)[1], x))

    for got, want in zip(jax.tree.leaves(after(ag.optimize(descent))(params)), after(descent)(params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-7)
    many = jax.tree.map(lambda w: jnp.stack([w, 2 * w]), params)
    batch = [jax.jit(jax.vmap(f, (0, None)))(many, x) for f in (ag.optimize(descent), descent)]
    for got, want in zip(*map(jax.tree.leaves, batch), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_model_of_layers():
    """`ag.jit` with a donated state and `ag.Optimizer`, which has a barrier around its update."""
    model = ag.nn.MLP(96, 10, 96, 2, key=jax.random.key(0))
    optimizer = ag.Optimizer(optax.adam(1e-2)).init(model)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        return optimizer.step(lambda model, x: jnp.square(model(x)).mean())(model, x)

    x = normal(3, 32, 96)
    assert fired(step, model, optimizer, x) >= 1
    agree(step, model, optimizer, x, rtol=3e-5)  # a first step of Adam divides a gradient by its size


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_sum_is_waited_for_where_there_is_one(has_bias: bool):
    """The gradient of a bias, and not the array that is summed, which would have to be kept."""

    def step(layers: Any, x: Any) -> Any:
        def loss(layers: Any) -> Any:
            y = x
            for w, b in layers:
                y = jnp.tanh(y @ w + b if has_bias else y @ w)
            return jnp.square(y).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, layers, jax.grad(loss)(layers))

    args = [(w, jnp.zeros(w.shape[1])) for w in weights()], normal(9, 32, 96)
    program: Any = jax.make_jaxpr(step)(*args)
    level = Level(normalize(program, False)[0].jaxpr)
    waited = {level.eqns[k].primitive.name for one in late_writes(level, updates(level)) for k in one.readers}
    assert waited == {"reduce_sum" if has_bias else "dot_general"}


def test_near_misses():
    """Nothing is done where the new value is computed from all that reads the old one, or is no entrywise update."""
    w, x = normal(0, 96, 96), normal(1, 32, 96)
    assert fired(lambda w, x: w - (x.T @ jnp.tanh(x @ w)), w, x) == 0  # the gradient of one layer
    assert fired(lambda w, x: (x @ w, w @ w), w, x) == 0
    assert fired(lambda w, x: (x @ w, w), w, x) == 0
    assert fired(lambda w, x: (x[:, :8] @ w, w + 1), w[:8, :8], x) == 0  # small
    assert fired(lambda w, x: ((w + 1) @ x.T, w + 1), w, x) == 0  # the new value is what is read


def test_sums_alone_are_not_waited_for():
    """What reads an argument beside its new value is a sum: waited for, it is a pass over memory of its own."""

    def f(w: Any) -> Any:
        return jnp.sum(jnp.exp(w) * w, 1).mean(), jnp.abs(w) - 1

    w = normal(0, 512, 64)
    assert fired(f, w) == 0
    assert fired(lambda w, x: (*f(w), x @ w), w, normal(1, 32, 512)) == 1  # a product is, and the sum with it
    agree(f, w)


@pytest.mark.parametrize("function", [sin_of_many, cos_of_many, tan_of_many])
def test_a_function_of_our_own_is_fused(function: Any):
    """What takes the place of JAX's operations works entry by entry too: nothing is kept for it."""

    def waited(f: Any) -> set[str]:
        level = Level(jax.make_jaxpr(f)(normal(0, 256, 256), normal(1, 256, 256)).jaxpr)
        return {level.eqns[k].primitive.name for one in late_writes(level, updates(level)) for k in one.readers}

    assert waited(lambda x, y: (y + 1, x + function(y))) == set()
    assert waited(lambda x, y: (y + 1, x + function(y), x @ y)) == {"dot_general"}


def test_two_that_would_wait_for_each_other():
    """What reads the old one of a pair and the new one of the other: only one of the two can be put in order."""

    def f(v: Any, w: Any) -> Any:
        new_v, new_w = v + 1, w * 2
        return new_v, new_w, v @ new_w, w @ new_v

    v, w = normal(0, 96, 96), normal(1, 96, 96)
    assert fired(f, v, w) == 1
    agree(f, v, w)


def test_no_entries():
    """Of nothing."""
    agree(lambda w, x: (x @ w, w + 1), jnp.zeros((96, 96)), jnp.zeros((0, 96)))


def accumulated(w: Any, x: Any, start: Any = 0.0) -> Any:
    """A loop that begins with one number everywhere, behind a product as large that nobody needs by then."""
    n = w.shape[1]
    step = lambda total, row: (jnp.sin(total) * 0.5 + jnp.outer(row, row), None)  # noqa: E731
    return lax.scan(step, jnp.full((n, n), start, x.dtype), jnp.tanh(x @ jnp.tanh(w.T @ w)))[0]


def stacked(w: Any, x: Any) -> tuple[Any, Any]:
    """A loop back over rows that are computed from as large an array that nobody needs by then, with two outputs."""

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        new = jnp.clip(carry @ weights, -2, 2) + row
        return new, (new, jnp.where(new > 1, row, 3))

    weights = w.T @ w
    rows = jnp.clip(x @ w, -2, 2) @ weights
    _, (ys, others) = lax.scan(step, jnp.ones(w.shape[1], x.dtype), rows, reverse=True)
    return ys @ w.T, others @ w.T


def late_loops(f: Callable[..., Any], *args: Any) -> int:
    """How many loops are filled late."""
    return sum(d.rule == NAME and "a loop begins with" in d.what for d in ag.explain(f)(*args).fired)


@pytest.mark.parametrize("start", [0.0, -0.0, -np.inf, 3.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_loop_begins_with_is_filled_late(start: float, dtype: str) -> None:
    """The bits are the same, -0.0 too."""
    w, x = normal(0, 64, 256, dtype=dtype), normal(1, 5, 256, dtype=dtype)
    assert late_loops(accumulated, w, x, start) == 0  # it is an argument
    f = lambda w, x: accumulated(w, x, start)  # noqa: E731
    assert late_loops(f, w, x) == 1
    got, want = (np.asarray(jax.jit(h)(w, x)) for h in (ag.optimize(f), f))
    assert got.tobytes() == want.tobytes()
    no_step = lambda w, x: accumulated(w, x[:0], start)  # noqa: E731
    assert np.asarray(ag.optimize(no_step)(w, x)).tobytes() == np.asarray(no_step(w, x)).tobytes()


def held(f: Callable[..., Any], *args: Any) -> int:
    """Bytes."""
    plan: Any = jax.jit(f).lower(*args).compile().memory_analysis()
    return plan.temp_size_in_bytes


def test_fills_are_held_as_long_as_their_loop() -> None:
    """4 MB less are held at once: what the loop begins with is not there when the products are at their largest."""

    def f(w: Any) -> Any:
        y = jnp.sin(w @ w) @ w[0]
        step = lambda i, t: jnp.sin(t) * 0.5 + lax.dynamic_slice(y, (i,), (1,))  # noqa: E731
        return lax.fori_loop(0, 9, step, jnp.zeros((1 << 20,))).sum()

    w = normal(0, 1 << 10, 1 << 10)
    assert late_loops(f, w) == 1
    assert held(ag.optimize(f), w) <= held(f, w) - (1 << 22)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_what_a_loop_stacks_is_held_as_long_as_the_loop(dtype: str) -> None:
    """The values are the same, and what is stacked takes the memory of what is not needed by then."""
    w, x = ((normal(k, *shape) * 2).astype(dtype) for k, shape in enumerate([(64, 256), (300, 64)]))
    assert late_loops(stacked, w, x) == 1
    agree(stacked, w, x)
    no_step = lambda w, x: stacked(w, x[:0])  # noqa: E731
    assert late_loops(no_step, w, x) == 0
    agree(no_step, w, x)
    without = ag.optimize(stacked, passes=[one for one in DEFAULT_PASSES if one.name != NAME], rules=ag.rules.default)
    # products of integers XLA makes where they are read: there is nothing to be freed
    assert dtype == "int32" or held(ag.optimize(stacked), w, x) < held(without, w, x)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "of arguments": (lambda x: lax.fori_loop(0, 5, lambda i, t: t + x[i], jnp.zeros((256, 256))), (normal(0, 5, 256),)),
    "little": (lambda w, x: accumulated(w, x), (normal(0, 64, 16), normal(1, 5, 16))),
    "nothing is freed": (
        lambda w, x: lax.scan(lambda t, r: (jnp.sin(t) + jnp.outer(r, r), None), jnp.zeros((256, 256)), x @ w)[0],
        (normal(0, 64, 256), normal(1, 5, 64)),
    ),
    "all is kept": (
        lambda w, x: (y := x @ w, lax.scan(lambda c, r, s=w.T @ w: ((n := jnp.tanh(c @ s + r)), n), w[0], y)[1]),
        (normal(0, 64, 256), normal(1, 300, 64)),
    ),
    "a mask": (
        lambda w, x: lax.scan(lambda m, r: (m | (r > 0), None), jnp.zeros((512, 256), bool), x @ w)[0],
        (normal(0, 64, 256), normal(1, 5, 64)),
    ),
    "computed": (
        lambda w, x: lax.scan(lambda t, r: (t * 0.5 + r, None), jnp.sin(w @ w.T), x @ w)[0],
        (normal(0, 256, 256), normal(1, 5, 256)),
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_starts_are_left(name: str) -> None:
    """No memory is free by then, or what the loop begins with is small, no number, or not one number."""
    f, args = LEFT[name]
    assert late_loops(f, *args) == 0
