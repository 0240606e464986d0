"""Counters that all lanes of a `while` share are one number; other counters stay one for each lane."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag


def newton(a: Any, most: Any = 60) -> Any:
    """A square root, or what 60 steps come to."""
    far = lambda s: (s[0] < most) & (jnp.abs(s[1] * s[1] - a) > 1e-4 * a)  # noqa: E731
    return lax.while_loop(far, lambda s: (s[0] + 1, 0.5 * (s[1] + a / s[1])), (0, a))[1]


def history(x: Any, most: Any) -> Any:
    """What a buffer holds after as many steps as a lane says."""

    def step(s: Any) -> Any:
        i, buffer, c = s
        return i + 1, buffer.at[i].set(jnp.sum(c)), jnp.tanh(c) * 1.1

    return lax.while_loop(lambda s: (s[0] < 40) & (most > s[0]), step, (0, jnp.zeros(40), x))[1]


def walk(key: Any, far: Any) -> Any:
    """A walk that ends far from its start."""

    def step(s: Any) -> Any:
        i, key, x = s
        key, one = jax.random.split(key)
        return i + 2, key, x + jax.random.normal(one)

    return lax.while_loop(lambda s: jnp.logical_and(jnp.abs(s[2]) < far, s[0] <= 100), step, (4, key, 0.0))[2]


def noted(x: Any) -> Any:
    """The step at which something was seen last, by a counter in the body."""
    step = lambda s: (s[0] + 1, s[1] * 0.8, jnp.where(s[1] > 2, s[0], s[2]))  # noqa: E731
    return lax.while_loop(lambda s: (s[0] < 30) & (s[1] > 0.5), step, (0, x, -1))[1:]


X = jnp.abs(jax.random.normal(jax.random.key(0), (37,))) * 5 + 0.1
MOST = jax.random.randint(jax.random.key(1), (37,), 0, 45)
ROWS = jax.random.normal(jax.random.key(2), (37, 5))
KEYS = jax.random.split(jax.random.key(3), 37)
FIRES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "until it is near": (jax.vmap(newton), (X,)),
    "with most steps that lanes share": (lambda x, n: jax.vmap(newton, (0, None))(x, n), (X, 7)),
    "as many steps as each lane says": (jax.vmap(history), (ROWS, MOST)),
    "along another axis": (jax.vmap(history, (1, 0), 1), (ROWS.T, MOST)),
    "a counter by twos": (jax.vmap(walk), (KEYS, X)),
    "a counter that is read": (jax.vmap(noted), (X,)),
    "two dimensions of lanes": (jax.vmap(jax.vmap(newton)), (X[:36].reshape(4, 9),)),
    "in a loop": (lambda x: lax.scan(lambda c, _: (jax.vmap(newton)(c) + 1, None), x, None, length=3)[0], (X,)),
    "no lanes": (jax.vmap(newton), (X[:0],)),
}


def counters(f: Callable[..., Any], *args: Any) -> int:
    """How many loops count their steps once."""
    return sum(d.rule == "shared-counters" for d in ag.explain(f)(*args).fired)


@pytest.mark.parametrize("form", FIRES)
def test_a_shared_counter_is_one_number(form: str) -> None:
    """Bit by bit what JAX gives, compiled and under further transformations."""
    f, args = FIRES[form]
    assert counters(f, *args) == 1
    jax.tree.map(np.testing.assert_array_equal, jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args))
    twice = jax.vmap(f, in_axes=(0, *[None] * (len(args) - 1)))
    many = jnp.stack([args[0]] * 2) if args[0].dtype != KEYS.dtype else jnp.stack([KEYS, KEYS[::-1]])
    got = jax.vmap(ag.optimize(f), in_axes=(0, *[None] * (len(args) - 1)))(many, *args[1:])
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)  # XLA compiles another program
    jax.tree.map(close, got, twice(many, *args[1:]))


def test_derivatives_are_those_of_jax() -> None:
    """Forward mode goes through the loop."""
    f = jax.vmap(newton)
    got, want = (jax.jit(lambda x, g=g: jax.jvp(g, (x,), (x,)))(X) for g in (ag.optimize(f), f))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


def loop(cond: Callable[..., Any], step: Callable[..., Any], start: Any = 0, read: Any = 1) -> Callable[..., Any]:
    """A `while` over a counter and a number, in lanes."""
    return jax.vmap(lambda x, n: lax.while_loop(lambda s: cond(s, n), step, (start, x))[read])


def halve(s: Any) -> Any:
    """A step."""
    return s[0] + 1, s[1] * 0.5


def inner(s: Any) -> Any:
    """A step with a loop of its own, which need not end for other counts than those that its lane has seen."""
    return s[0] + 1, lax.while_loop(lambda z: z * s[0] > 1, lambda z: z * 0.5, s[1])


NEAR_MISSES: dict[str, Callable[..., Any]] = {
    # a stopped lane would go on where its counter has grown
    "a lane that waits": loop(lambda s, n: (s[0] < 40) & ((s[1] > 1) | (s[0] > n)), halve),
    "at least so many steps": loop(lambda s, n: (s[0] < 60) & (s[0] - n < s[1]), halve),
    "one step in two": loop(lambda s, n: (s[0] < 30) & ((s[0] % 2 == 0) | (s[1] > n)), halve),
    "a counter that must be above": loop(lambda s, n: (s[0] < 40) & (s[0] >= n - 40), halve),
    "a loop in the step": loop(lambda s, n: (s[0] < 30) & (s[1] > 0.1), inner),
    # not the same in all lanes
    "a start of its own": jax.vmap(lambda x, n: lax.while_loop(lambda s: (s[0] < 50) & (s[1] > 0.1), halve, (n, x))[1]),
    "a step of its own": loop(lambda s, n: (s[0] < 30) & (s[1] > 0.1), lambda s: (s[0] + 1 + (s[1] > 1), s[1] * 0.5)),
    "a counter that is the result": loop(lambda s, _: (s[0] < 30) & (s[1] > 0.1), halve, read=0),
    "a float": loop(lambda s, _: (s[0] < 30) & (s[1] > 0.1), halve, start=0.0),
    "backwards": loop(lambda s, _: (s[0] > -30) & (s[1] > 0.1), lambda s: (s[0] - 1, s[1] * 0.5)),
}


@pytest.mark.parametrize("form", NEAR_MISSES)
def test_other_counters_stay(form: str) -> None:
    """Conditions that a stopped lane could meet again, counters that differ, counters that are read."""
    f = NEAR_MISSES[form]
    assert counters(f, X, MOST) == 0
    jax.tree.map(np.testing.assert_array_equal, jax.jit(ag.optimize(f))(X, MOST), jax.jit(f)(X, MOST))


def test_lanes_are_not_run_one_part_after_the_other() -> None:
    """A loop of unknown length is no short work: in three parts, each with all its steps, it took 1.9 times as long."""

    def fill(x: Any, most: Any) -> Any:
        step = lambda s: (s[0] + 1, s[1].at[s[0] % 901].set(jnp.sin(s[1][(s[0] * 7) % 901]) + 1))  # noqa: E731
        return lax.while_loop(lambda s: s[0] < most, step, (0, x))[1]

    args = jax.random.normal(jax.random.key(5), (33, 901)), jnp.arange(33) * 7
    f = jax.vmap(fill)
    assert counters(f, *args) == 1
    assert "scan" not in {eqn.primitive.name for eqn in jax.make_jaxpr(ag.optimize(f))(*args).jaxpr.eqns}
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args))
