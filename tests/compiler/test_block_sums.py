"""Block sums: a loop adds up one product for each block of its steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel import nn
from aerogel.compiler.passes.block_sums import NAME, BlockSums
from compiler.loop_patterns import normal
from compiler.programs_of import FAST, traced

STEPS, BATCH, WIDTH = 96, 32, 128


def lstm(weights: Any, xs: Any) -> Any:
    """The states of all steps."""

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x @ weights["w"] + h @ weights["u"] + weights["b"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((xs.shape[1], weights["u"].shape[0]), xs.dtype)
    return lax.scan(step, (zeros, zeros), xs)[1]


def layer() -> Callable[..., Any]:
    """The states of all steps of a layer of Aerogel, [time, batch, features]."""
    return lambda model, xs: jnp.moveaxis(model(jnp.moveaxis(xs, 0, 1))[0], 1, 0)


def arguments(name: str, batch: int = BATCH) -> tuple[Callable[..., Any], Any, Any]:
    """A layer, its weights and an input, [time, batch, features]."""
    xs = jnp.asarray(normal(0, STEPS, batch, WIDTH))
    if name == "by hand":
        shapes = {"w": (WIDTH, 4 * WIDTH), "u": (WIDTH, 4 * WIDTH), "b": (4 * WIDTH,)}
        return lstm, {key: 0.1 * normal(k, *shape) for k, (key, shape) in enumerate(shapes.items())}, xs
    return layer(), getattr(nn, name)(WIDTH, WIDTH, key=jax.random.key(0)), xs


def gradient(run: Callable[..., Any], last: bool) -> Callable[..., Any]:
    """Value and gradient of a sum of squares of the last states, or of all."""

    def loss(weights: Any, xs: Any) -> Any:
        states = run(weights, xs)
        return jnp.sum(states[-1] ** 2 if last else states**2)

    return jax.value_and_grad(loss)


def block_sums(f: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What is decided about sums in blocks."""
    return [one for one in ag.explain(f, **options)(*args).decisions if one.rule == NAME]


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How many sums are made in blocks."""
    return sum(one.fired for one in block_sums(f, *args, **options))


def temporary_bytes(f: Callable[..., Any], *args: Any) -> int:
    """In XLA's plan."""
    found = jax.jit(f).lower(*args).compile().memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes


def agree(got: Any, want: Any) -> None:
    """To 1e-4 of the largest entry of each array."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.abs(b).max()))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["by hand", "LSTM", "GRU"])
def test_gradients_of_weights_are_made_in_blocks(name: str, last: bool) -> None:
    """Fires on layers of all kinds, in two thirds of plain JAX's memory, and agrees with it."""
    run, weights, xs = arguments(name)
    f = gradient(run, last)
    assert fired(f, weights, xs)
    assert temporary_bytes(ag.optimize(f), weights, xs) <= temporary_bytes(f, weights, xs)
    agree(jax.jit(ag.optimize(f))(weights, xs), jax.jit(f)(weights, xs))


def added(w: Any, xs: Any, ys: Any, reverse: bool = False) -> Any:
    """A sum over the steps, the states of all steps, and a state."""

    def step(carry: Any, pair: Any) -> Any:
        total, state = carry
        x, y = pair
        state = jnp.tanh(state @ w + x)
        return (total + state.T @ y, state), jnp.sum(state, 1)

    (total, state), sums = lax.scan(step, (jnp.tile(w, 4), xs[0]), (xs, ys), reverse=reverse)
    return total, state, sums


def operands(steps: int = STEPS, batch: int = BATCH, width: int = WIDTH) -> tuple[Any, Any, Any]:
    """Of `added`: what makes a sum of `width x 4 * width`."""
    return (0.1 * normal(0, width, width), normal(1, steps, batch, width), normal(2, steps, batch, 4 * width))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [STEPS, 89])
def test_a_sum_that_begins_with_something_and_what_else_the_loop_makes(steps: int, reverse: bool) -> None:
    """The sum goes on from where the block before left it; outputs are those of all steps, in order."""
    args = operands(steps)
    f = partial(added, reverse=reverse)
    assert fired(f, *args) == 1
    agree(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args))


def test_two_layers_one_behind_the_other() -> None:
    """The loop of the second gradient reads what that of the first hands on."""
    (run, weights, xs), (_, others, _) = arguments("by hand"), arguments("by hand")
    f = jax.value_and_grad(lambda both, xs: jnp.sum(run(both[1], run(both[0], xs)) ** 2))
    assert fired(f, (weights, others), xs) == 4
    agree(jax.jit(ag.optimize(f))((weights, others), xs), jax.jit(f)((weights, others), xs))


def test_a_loop_that_goes_on_from_another() -> None:
    """Both are made in blocks, though the second reads the results of the first."""

    def f(w: Any, xs: Any, ys: Any) -> Any:
        def step(carry: Any, pair: Any) -> Any:
            total, state = carry
            state = jnp.tanh(state @ w + pair[0])
            return (total + state.T @ pair[1], state), None

        first, _ = lax.scan(step, (jnp.tile(w, 4), xs[0]), (xs, ys))
        return lax.scan(step, first, (ys[..., :WIDTH], 2 * ys))[0]

    assert fired(f, *operands()) == 2
    agree(jax.jit(ag.optimize(f))(*operands()), jax.jit(f)(*operands()))


def test_factors_that_are_outputs_too() -> None:
    """Nothing more has to be stacked, and no step reads an input."""

    def f(w: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            total, x = carry
            x = jnp.tanh(x @ w)
            return (total + x.T @ x, x), x

        (total, _), states = lax.scan(step, (jnp.zeros_like(w), w[:BATCH]), None, length=STEPS)
        return total, states

    w = 0.1 * normal(0, 256, 256)
    block_sums(f, w)
    agree(jax.jit(ag.optimize(f))(w), jax.jit(f)(w))


def test_a_second_derivative_goes_through() -> None:
    """A loop of loops has a derivative like that of the loop."""
    run, weights, xs = arguments("by hand")
    f = gradient(run, last=True)

    def second(f: Callable[..., Any]) -> Any:
        return jax.grad(lambda xs: sum(jnp.sum(g**2) for g in jax.tree.leaves(f(weights, xs)[1])))(xs)

    agree(second(jax.jit(ag.optimize(f))), second(f))


def test_a_batch_of_gradients_agrees() -> None:
    """Under `vmap`."""
    run, weights, xs = arguments("by hand")
    f = gradient(run, last=False)
    many = jnp.stack([xs, 0.5 * xs])
    agree(jax.vmap(ag.optimize(f), (None, 0))(weights, many), jax.vmap(f, (None, 0))(weights, many))


def test_half_precision_sums_are_as_exact() -> None:
    """In bfloat16 a product of more terms rounds less often than one for each step."""
    args = operands()
    short = [jnp.asarray(x, jnp.bfloat16) for x in args]
    w, xs, ys = (jnp.asarray(x, jnp.float32) for x in short)
    exact = np.asarray(added(w, xs, ys)[0])

    def error(f: Callable[..., Any]) -> float:
        return float(np.abs(np.asarray(f(*short)[0], np.float32) - exact).max())

    assert error(jax.jit(ag.optimize(added))) <= 1.1 * error(added)


def inner_loop(w: Any, xs: Any, ys: Any) -> Any:
    """Each step has a loop of its own."""

    def step(carry: Any, pair: Any) -> Any:
        total, state = carry
        state = lax.fori_loop(0, pair[0][0, 0].astype(int) % 3 + 1, lambda _, s: jnp.tanh(s @ w), state + pair[0])
        return (total + state.T @ pair[1], state), None

    return lax.scan(step, (jnp.tile(w, 4), xs[0]), (xs, ys))[0]


def unrolled(w: Any, xs: Any, ys: Any) -> Any:
    """Two steps in one."""

    def step(carry: Any, pair: Any) -> Any:
        total, state = carry
        return (total + state.T @ pair[1], jnp.tanh(state @ w + pair[0])), None

    return lax.scan(step, (jnp.tile(w, 4), xs[0]), (xs, ys), unroll=2)[0]


LEFT: dict[str, tuple[Callable[..., Any], tuple[int, int, int], dict[str, Any]]] = {
    "strict": (added, (STEPS, BATCH, WIDTH), {"numerics": "strict"}),
    "few terms in a step": (added, (STEPS, 4, WIDTH), {}),
    "many terms in a step": (added, (STEPS, 64, WIDTH), {}),
    "a small sum": (added, (STEPS, BATCH, 96), {}),
    "long rows": (added, (4, 32, 2600), {}),
    "a loop in a step": (inner_loop, (STEPS, BATCH, WIDTH), {}),
    "steps that were unrolled": (unrolled, (STEPS, BATCH, WIDTH), {}),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays(name: str) -> None:
    """Each of these sums is made as before."""
    f, (steps, batch, width), options = LEFT[name]
    args = operands(steps, batch, width)
    decisions = block_sums(f, *args, **options)
    assert not any(one.fired for one in decisions)
    assert all(one.reason for one in decisions)


def test_under_a_limit_on_memory_it_stays() -> None:
    """That limit is another pass's, which has run."""
    args = operands()
    program = traced(added, *args)
    assert BlockSums()(program, replace(FAST, memory_limit=1 << 40)) == (program, [])


def test_it_rests() -> None:
    """A loop over blocks is no loop to be made of blocks."""
    args = operands()
    once, decisions = BlockSums()(traced(added, *args), FAST)
    assert [one.fired for one in decisions] == [True]
    again, decisions = BlockSums()(once, FAST)
    assert again is once
    assert not any(one.fired for one in decisions)
