"""What the step before has computed is not computed again: once a step, with the same values and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.loop_commoning import LoopCommoning
from compiler.loop_patterns import normal
from compiler.programs_of import scans, traced

Step = Callable[[Any, Any], Any]
X, W = normal(0, 4096), normal(1, 4096) / 4
M = W.reshape(64, 64)


def first_and_last(force: Callable[[Any], Any]) -> Step:
    """A step of velocity Verlet, which asks for the force where the step begins and where it ends."""

    def step(state: Any, _: Any) -> Any:
        q, p = state
        p = p + 0.05 * force(q)
        q = q + 0.1 * p
        return (q, p + 0.05 * force(q)), None

    return step


def loop(step: Step, length: int = 8, reverse: bool = False) -> Callable[[Any, Any], Any]:
    """The last state and what its steps put out, as a function of the first state."""
    return lambda q, p: lax.scan(step, (q, p), jnp.arange(length), reverse=reverse)


def steps_hold(f: Callable[..., Any], name: str, *args: Any) -> int:
    """How often an operation stands in the steps of the optimised program's loops."""
    program = traced(ag.optimize(f, passes=(LoopCommoning(),), rules=()), *args)
    return sum(eqn.primitive.name == name for one in scans(program) for eqn in one.params["jaxpr"].jaxpr.eqns)


FORCES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sine": ("sin", lambda q: -W * jnp.sin(q)),
    "what its step hands on is not": ("sin", lambda q: jnp.where(q > 0, jnp.sin(q), 0.5 * jnp.sin(q) + q)),
    "product": ("dot_general", lambda q: jnp.tanh(q.reshape(64, 64) @ M).ravel()),
    "two results": ("sort", lambda q: lax.sort((q, q * W), num_keys=1)[1]),
    "gradient of a potential": ("sin", jax.grad(lambda q: (W * jnp.cos(q)).sum())),
    "function": ("sin", jax.jit(lambda q: jnp.sin(q) * jnp.exp(-q * q))),
    "half precision": ("sin", lambda q: jnp.sin(q.astype(jnp.bfloat16)).astype(q.dtype)),
}


@pytest.mark.parametrize("name", FORCES)
def test_a_step_computes_it_once(name: str) -> None:
    """Two forces a step become one, whatever they are, and the results agree, in a reversed loop too."""
    primitive, force = FORCES[name]
    f = loop(first_and_last(force), reverse=name == "sine")
    assert steps_hold(f, primitive, X, W) == 1
    for got, want in zip(jax.jit(ag.optimize(f))(X, W)[0], jax.jit(f)(X, W)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transform", [jax.vmap, jax.grad])
def test_holds_where_the_loop_is_transformed(transform: Callable[..., Any]) -> None:
    """Under vmap, and in the gradient, whose forward loop also computes one cosine a step; results agree."""
    f = loop(first_and_last(FORCES["sine"][1]))
    if transform is jax.vmap:
        g, args = jax.vmap(lambda q, p: f(q, p)[0]), (jnp.stack([X, 2 * X]), jnp.stack([W, W]))
    else:
        g, args = jax.grad(lambda q, p: sum((x**2).sum() for x in f(q, p)[0]), (0, 1)), (X, W)
        assert steps_hold(g, "cos", *args) == 1
    assert steps_hold(g, "sin", *args) == 1
    for got, want in zip(jax.jit(ag.optimize(g))(*args), jax.jit(g)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def mandelbrot(state: Any, _: Any) -> Any:
    """Points go on while they are near, and how long they do is counted: cheap for XLA, twice a step."""

    def is_near(q):
        return jnp.abs(lax.complex(q, 0.3 * q)) < 2

    q, steps = state
    q = jnp.where(is_near(q), q * q - 0.7, q)
    return (q, steps + is_near(q).astype(q.dtype)), None


NEAR_MISSES: dict[str, tuple[Step, int]] = {
    "of the step's number": (lambda s, i: ((s[0] + jnp.sin(s[1] * i), s[1] + jnp.sin(s[0] * i)), None), 8),
    "of the state before": (lambda s, _: ((s[0] + jnp.sin(s[1]), jnp.sin(s[0]) + s[1]), None), 8),
    "one step": (first_and_last(FORCES["sine"][1]), 1),
    "cheap": (lambda s, _: ((0.5 * s[1], s[1] + 0.1), 0.5 * (s[1] + 0.1)), 8),
    "arithmetic that XLA fuses with what stays": (first_and_last(lambda q: q - q * q * q), 8),
    "of an unchanged state": (lambda s, _: ((s[0], s[1] + jnp.sin(s[0])), jnp.sin(s[0])), 8),
    "what XLA computes again for each reader": (mandelbrot, 8),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_leaves_alone(name: str) -> None:
    """What differs from step to step, what is little, and what never changes."""
    step, length = NEAR_MISSES[name]
    reports: list[Any] = []
    jax.make_jaxpr(ag.optimize(loop(step, length), passes=(LoopCommoning(),), rules=(), on_report=reports.append))(X, W)
    assert not reports[-1].fired


def test_draws_stay_apart() -> None:
    """Two draws of one range are two."""

    def step(state: Any, _: Any) -> Any:
        draws = [lax.rng_uniform(jnp.float32(0), jnp.float32(1), (4096,)) for _ in range(2)]
        return (state[0] + draws[0], state[1] + draws[1]), None

    assert steps_hold(loop(step), "rng_uniform", X, W) == 2


@settings(max_examples=20)
@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5), st.integers(2, 4))
def test_any_step_keeps_its_meaning(names: list[str], length: int) -> None:
    """A chain of functions of the old and of the new state, in any order, gives the same numbers."""
    parts = {
        "a": jnp.sin,
        "b": lambda x: x * W,
        "c": lambda x: jnp.cos(x) + 0.5,
        "d": jnp.tanh,
        "e": lambda x: x[::-1],
        "f": lambda x: x - 0.25,
    }

    def chain(x: Any) -> Any:
        for name in names:
            x = parts[name](x)
        return x

    def step(state: Any, i: Any) -> Any:
        q, p = state
        n = 0.5 * p + 0.25 * chain(q)
        return (n, q + 0.1 * chain(n)), chain(q)[:2] + i

    def f(q: Any, p: Any) -> Any:
        return lax.scan(step, (q, p), jnp.arange(length))

    optimised = ag.optimize(f, passes=(LoopCommoning(),), rules=())
    for got, want in zip(jax.tree.leaves(optimised(X, W)), jax.tree.leaves(f(X, W)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
