"""Functions with derivative rules of their own over the outputs of a loop: they move into it with their rules."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import LENGTH, normal, stacked

X0 = normal(0, 16, 512)


@jax.custom_vjp
def gate(x: Any) -> Any:
    """A gate whose rule is marked: one and a half times the derivative."""
    return x * jax.nn.sigmoid(x)


def _gate_forward(x: Any) -> Any:
    s = jax.nn.sigmoid(x)
    return gate(x), (x, s)


gate.defvjp(_gate_forward, lambda kept, g: (1.5 * g * (kept[1] + kept[0] * kept[1] * (1 - kept[1])),))


@jax.custom_vjp
def unit(x: Any, k: Any) -> Any:
    """Rows of length one; a second argument without a derivative."""
    return k * x / jnp.sqrt((x * x).sum(-1, keepdims=True))


unit.defvjp(lambda x, k: (unit(x, k), (x, k)), lambda kept, g: (2 * g - kept[0], None))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def straight(x: Any, bound: float) -> Any:
    """Clipped, with a gradient as if it were not."""
    return jnp.clip(x, -bound, bound)


straight.defvjp(lambda x, bound: (straight(x, bound), None), lambda bound, _, g: (g * bound,))

CALLS: dict[str, Callable[[Any], Any]] = {
    "gate": lambda ys: gate(ys).sum(0),
    "rows": lambda ys: unit(ys, 3).mean(0),
    "argument known beforehand": lambda ys: jnp.max(straight(ys, 0.3), 0),
    "in a jit": lambda ys: jax.jit(gate)(ys - 1).mean(),
    "vmapped": lambda ys: jax.vmap(jax.vmap(gate))(ys).sum((0, 2)),
}


def program(name: str) -> Callable[[Any], Any]:
    """A loop, and a reduction of a function of its outputs."""

    def f(x0: Any) -> Any:
        ys = lax.scan(lambda c, _: (0.9 * c + 0.3 * jnp.cos(c),) * 2, x0, None, length=LENGTH)[1]
        return CALLS[name](ys)

    return f


def scalar(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The sum of what `f` returns, weighted."""
    return lambda x0: (f(x0) * 1.1).sum()


@pytest.mark.parametrize("name", CALLS)
def test_the_call_moves_with_its_rules(name: str) -> None:
    """No stack is left; first and second derivatives are the user's, inside and outside of `optimize`."""
    f = program(name)
    assert stacked(jax.make_jaxpr(f)(X0).jaxpr, LENGTH * X0.size)
    assert stacked(jax.make_jaxpr(ag.optimize(f))(X0).jaxpr, LENGTH * X0.size) == []
    want = jax.jit(f)(X0)
    # sums of terms of both signs
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(X0), want, rtol=1e-5, atol=1e-6 * np.max(np.abs(want)))
    want = jax.jit(jax.grad(scalar(f)))(X0)
    for got in (jax.grad(scalar(ag.optimize(f))), ag.optimize(jax.grad(scalar(f)))):
        np.testing.assert_allclose(jax.jit(got)(X0), want, rtol=1e-4, atol=1e-6)
    if name != "rows":  # its derivative is that of no function
        twice = lambda f: jax.jit(jax.grad(lambda x: (jax.grad(scalar(f))(x) ** 2).sum()))  # noqa: E731
        want = twice(f)(X0)
        np.testing.assert_allclose(twice(ag.optimize(f))(X0), want, rtol=1e-3, atol=1e-4 * np.max(np.abs(want)))
