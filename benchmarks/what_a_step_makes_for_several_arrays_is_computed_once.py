"""Claim: what a loop's step makes for several arrays is computed once in a step, not once for each of them.

XLA's CPU backend computes a value of one full-size operand anew for each of its readers. An expert gives it a second
one: a selection that XLA cannot see through, between the value and the state before.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case

L, B = 256, 16_384


def step(c):
    return jnp.cos(c) + 0.1


def trajectory(x):
    return lax.scan(lambda c, _: (step(c),) * 2, x, None, length=L)[1]


def own_loop(x):
    """Two statistics that the user accumulates."""

    def body(state, _):
        c, total, largest = state
        c = step(c)
        return (c, total + c, jnp.maximum(largest, c)), None

    return statistics(body, x)


def kept(x):
    """The same, with the selection."""

    def body(state, t):
        old, total, largest = state
        c = jnp.where(t >= 0, step(old), old)
        return (c, total + c, jnp.maximum(largest, c)), None

    return statistics(body, x)


def statistics(body, x):
    start = (x, jnp.zeros_like(x), jnp.full_like(x, -jnp.inf))
    return lax.scan(body, start, jnp.arange(L))[0][1:]


def kept_sum(x):
    def body(state, t):
        old, total = state
        c = jnp.where(t >= 0, step(old), old)
        return (c, total + c), None

    return lax.scan(body, (x, jnp.zeros_like(x)), jnp.arange(L))[0][1]


def sum_and_max(x):
    ys = trajectory(x)
    return ys.sum(0), ys.max(0)


def start():
    return (jax.random.normal(jax.random.key(0), (B,)),)


FORM = "a selection keeps the state"
CASES = (
    Case("sum over time", lambda x: trajectory(x).sum(0), {FORM: kept_sum}, start, bounds=Bounds(speedup=1.5)),
    Case("sum and maximum over time", sum_and_max, {FORM: kept}, start, bounds=Bounds(speedup=1.5)),
    Case("a user's own loop", own_loop, {FORM: kept}, start, bounds=Bounds(speedup=1.5)),
)
