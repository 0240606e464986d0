"""Claim: a `while` of many lanes that counts its steps carries one counter, as an expert's loop over the batch does.

`vmap` of `while (i < most) & (error > tolerance)` counts for each lane. An expert loops over the batch, with one
counter, and selects what lanes that have stopped keep.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)


def root(a):
    """Newton's steps to a square root."""
    far = lambda s: (s[0] < 60) & (jnp.abs(s[1] * s[1] - a) > 1e-4 * a)  # noqa: E731
    return lax.while_loop(far, lambda s: (s[0] + 1, 0.5 * (s[1] + a / s[1])), (0, a))[1]


def roots_by_hand(a):
    def step(s):
        i, x = s
        return i + 1, jnp.where(jnp.abs(x * x - a) > 1e-4 * a, 0.5 * (x + a / x), x)

    return lax.while_loop(lambda s: (s[0] < 60) & jnp.any(jnp.abs(s[1] * s[1] - a) > 1e-4 * a), step, (0, a))[1]


def walk(key, far):
    """A walk until it is far from its start, of 500 steps at most."""

    def step(s):
        i, key, x = s
        key, one = jax.random.split(key)
        return i + 1, key, x + jax.random.normal(one)

    return lax.while_loop(lambda s: (s[0] < 500) & (jnp.abs(s[2]) < far), step, (0, key, 0.0))[2]


def walks_by_hand(keys, far):
    def step(s):
        i, keys, x = s
        both = jax.vmap(jax.random.split)(keys)
        goes_on = jnp.abs(x) < far
        x = jnp.where(goes_on, x + jax.vmap(jax.random.normal)(both[:, 1]), x)
        return i + 1, both[:, 0], x

    start = 0, keys, jnp.zeros(keys.shape)
    return lax.while_loop(lambda s: (s[0] < 500) & jnp.any(jnp.abs(s[2]) < far), step, start)[2]


def escape(c):
    """Steps of z -> z^2 + c until z is far: the points of a Mandelbrot set, with two numbers for a complex one."""

    def step(s):
        i, x, y = s
        return i + 1, x * x - y * y + c[0], 2 * x * y + c[1]

    return lax.while_loop(lambda s: (s[0] < 80) & (s[1] ** 2 + s[2] ** 2 < 4), step, (0, 0.0, 0.0))[1]


def escapes_by_hand(c):
    def step(s):
        i, x, y = s
        goes_on = x**2 + y**2 < 4
        return i + 1, jnp.where(goes_on, x * x - y * y + c[:, 0], x), jnp.where(goes_on, 2 * x * y + c[:, 1], y)

    zeros = jnp.zeros(c.shape[0])
    return lax.while_loop(lambda s: (s[0] < 80) & jnp.any(s[1] ** 2 + s[2] ** 2 < 4), step, (0, zeros, zeros))[1]


def keys(n):
    return jax.random.split(jax.random.key(0), n)


CASES = [
    Case(
        "square roots",
        jax.vmap(root),
        {"one counter": roots_by_hand},
        lambda: (jnp.exp(3 * normal(0, 20_000)),),
        bounds=BOUNDS,
    ),
    Case(
        "random walks",
        jax.vmap(walk),
        {"one counter": walks_by_hand},
        lambda: (keys(1000), 10 + jnp.arange(1000) * 0.01),
        bounds=BOUNDS,
    ),
    Case(
        "points that escape",
        jax.vmap(escape),
        {"one counter": escapes_by_hand},
        lambda: (normal(0, 40_000, 2),),
        bounds=BOUNDS,
    ),
]
