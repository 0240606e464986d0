"""Claim: what a loop's step makes for several arrays is computed once in a step, not once for each of them.

XLA's CPU backend computes a value of one full-size operand anew for each of its readers, and what several shifts read
for each of these. An expert gives it a second one: a selection that XLA cannot see through, between the value and the
state before. For gradients of stencils there is no such form short of writing the backward loop: the bound is plain
JAX's time.
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


def around(u):
    return sum(jnp.roll(u, shift, axis) for axis in range(u.ndim) for shift in (1, -1)) - 2 * u.ndim * u


def phase_potential(u):
    return u**3 - u - 0.5 * around(u)


def burgers_flux(u):
    return 0.5 * u**2 - 0.1 * u


def stencil(flux, spread):
    """A mean square over time of what flows between neighbours; and the same with a selection around the flow."""

    def natural(u):
        def body(u, _):
            return u + spread(flux(u)), jnp.mean(u**2)

        return lax.scan(body, u, None, length=50)[1].mean()

    def by_hand(u):
        def body(state, t):
            u, old = state
            flow = jnp.where(t >= 0, flux(u), old)
            return (u + spread(flow), flow), jnp.mean(u**2)

        return lax.scan(body, (u, jnp.zeros_like(u)), jnp.arange(50))[1].mean()

    return natural, {"a selection keeps the flow": by_hand}


def ising(s):
    """A mean field: its energy and next state read the sum of the neighbours."""

    def body(s, _):
        near = around(s) + 6 * s
        return jnp.tanh(0.3 * near + 0.1 * s), jnp.mean(s * near)

    return lax.scan(body, s, None, length=50)[1].mean()


def small(*shape):
    return lambda: (0.1 * jax.random.normal(jax.random.key(0), shape),)


NEVER_SLOWER = Bounds(over_hand=None, over_natural=1.03, memory_over_hand=None)
FORM = "a selection keeps the state"
CASES = (
    Case("sum over time", lambda x: trajectory(x).sum(0), {FORM: kept_sum}, start, bounds=Bounds(speedup=1.5)),
    Case("sum and maximum over time", sum_and_max, {FORM: kept}, start, bounds=Bounds(speedup=1.5)),
    Case("a user's own loop", own_loop, {FORM: kept}, start, bounds=Bounds(speedup=1.5)),
    Case(
        "phase field",
        *stencil(phase_potential, lambda flow: 0.01 * around(flow)),
        small(256, 256),
        (0,),
        bounds=Bounds(speedup=1.3),
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "Burgers' equation",
        *stencil(burgers_flux, lambda flow: 0.1 * (jnp.roll(flow, 1) - jnp.roll(flow, -1))),
        small(20_000),
        (0,),
        bounds=NEVER_SLOWER,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "Ising mean field",
        ising,
        {"plain": ising},
        small(20, 20, 20),
        (0,),
        bounds=NEVER_SLOWER,
        grad_bounds=NEVER_SLOWER,
    ),
)
