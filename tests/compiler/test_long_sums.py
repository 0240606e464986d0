"""Long sums: gradients of weights are one product after the loop, where the choice of residuals makes room for that."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel import nn
from compiler.loop_patterns import normal

STEPS, BATCH, WIDTH = 50, 32, 64


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


def long_sums(f: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """The sums that were taken out of a loop because there was room."""
    fired = ag.explain(f, **options)(*args).fired
    return [one for one in fired if "is one product after the loop" in one.what and one.rule != "loop-hoist"]


def temporary_bytes(f: Callable[..., Any], *args: Any) -> int:
    """In XLA's plan."""
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["by hand", "LSTM"])
def test_gradients_of_weights_leave_the_loop_in_the_memory_of_plain_jax(name: str, last: bool) -> None:
    """Fires on layers of all kinds, holds no more than plain JAX, and agrees with it."""
    run, weights, xs = arguments(name)
    f = gradient(run, last)
    assert long_sums(f, weights, xs)
    assert temporary_bytes(ag.optimize(f), weights, xs) <= temporary_bytes(f, weights, xs)
    got, want = jax.jit(ag.optimize(f))(weights, xs), jax.jit(f)(weights, xs)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.abs(b).max()))


def test_a_projection_outside_takes_the_room() -> None:
    """Where inputs are projected before the loop, that is held besides; the sum stays where it does not fit then."""
    run, weights, xs = arguments("GRU")
    f = gradient(run, last=True)
    assert any(d.rule == "residual-choice" for d in ag.explain(f)(weights, xs).fired)
    assert not long_sums(f, weights, xs)


def test_a_second_derivative_goes_through() -> None:
    """What stands behind the loop has a derivative like what stood in it."""
    run, weights, xs = arguments("by hand")
    f = gradient(run, last=True)

    def second(f: Callable[..., Any]) -> Any:
        return jax.grad(lambda xs: sum(jnp.sum(g**2) for g in jax.tree.leaves(f(weights, xs)[1])))(xs)

    got, want = second(jax.jit(ag.optimize(f))), second(f)
    assert jnp.allclose(got, want, rtol=1e-3, atol=1e-4 * float(jnp.abs(want).max()))


def test_a_batch_of_gradients_agrees() -> None:
    """Under `vmap`."""
    run, weights, xs = arguments("by hand")
    f = gradient(run, last=False)
    many = jnp.stack([xs, 0.5 * xs])
    got = jax.vmap(ag.optimize(f), (None, 0))(weights, many)
    want = jax.vmap(f, (None, 0))(weights, many)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.abs(b).max()))


def test_strict_numerics_keeps_the_order_of_the_sum() -> None:
    """One product of all steps sums in another order."""
    run, weights, xs = arguments("by hand")
    assert not long_sums(gradient(run, last=False), weights, xs, numerics="strict")


def test_without_room_the_sum_stays() -> None:
    """A loop whose forward loop stores nothing that could be computed again has no room for stacks."""

    def loss(w: Any, xs: Any) -> Any:
        return jnp.sum(lax.scan(lambda h, x: (h @ w + x, None), xs[0], xs)[0])

    w, xs = 0.1 * normal(0, WIDTH, WIDTH), normal(1, STEPS, BATCH, WIDTH)
    assert not long_sums(jax.grad(loss), w, xs)


def test_small_loops_store_what_large_ones_do() -> None:
    """28 steps of an LSTM of 64 units, whose values take less than a megabyte each."""
    run, weights, xs = arguments("by hand", batch=16)
    f = gradient(run, last=True)
    assert temporary_bytes(ag.optimize(f), weights, xs[:28]) <= temporary_bytes(f, weights, xs[:28])
