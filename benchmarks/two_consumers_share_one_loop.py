"""Claim: several uses of a scan's outputs share its one loop.

Two reductions of one output, one output reduced while another is returned, and a second scan over the first one's
outputs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case

L, B = 64, 102_400


def step(c):
    return c - 0.05 * c * c


def start():
    return (jax.random.uniform(jax.random.key(0), (B,), minval=0.5, maxval=1.5),)


def trajectory(x):
    return lax.scan(lambda c, _: (step(c), step(c)), x, None, length=L)[1]


def mean_and_max(x):
    ys = trajectory(x)
    return jnp.mean(ys), jnp.max(ys)


def mean_and_max_per_step(x):
    def body(c, _):
        c = step(c)
        return c, (jnp.mean(c), jnp.max(c))

    means, maxima = lax.scan(body, x, None, length=L)[1]
    return jnp.mean(means), jnp.max(maxima)


def mean_and_variance_over_time(x):
    ys = trajectory(x)
    return jnp.mean(ys, 0), jnp.var(ys, 0)


def welford(x):
    def body(state, i):
        c, mean, m2 = state
        c = step(c)
        delta = c - mean
        mean = mean + delta / (i + 1)
        return (c, mean, m2 + delta * (c - mean)), None

    zeros = jnp.zeros_like(x)
    (_, mean, m2), _ = lax.scan(body, (x, zeros, zeros), jnp.arange(L))
    return mean, m2 / L


def shifted_sums(x):
    """Sums of the distance from the first output and of its square (a shift near the mean keeps the digits)."""

    def body(state, _):
        c, total, squares = state
        c = step(c)
        return (c, total + (c - shift), squares + (c - shift) ** 2), None

    shift, zeros = step(x), jnp.zeros_like(x)
    (_, total, squares), _ = lax.scan(body, (x, zeros, zeros), None, length=L)
    return shift + total / L, squares / L - (total / L) ** 2


def energies_and_states(x):
    def body(c, _):
        c = step(c)
        return c, (c, c * c)

    ys, energies = lax.scan(body, x, None, length=L)[1]
    return ys, jnp.mean(energies)


def energies_partial(x):
    def body(c, _):
        c = step(c)
        return c, (c, jnp.mean(c * c))

    ys, energies = lax.scan(body, x, None, length=L)[1]
    return ys, jnp.mean(energies)


def smoothed(x):
    """A simulation, then an exponential moving average over it, of which the maximum is reported."""
    ys = trajectory(x)
    averages = lax.scan(lambda a, y: (0.9 * a + 0.1 * y,) * 2, jnp.zeros_like(x), ys)[1]
    return jnp.max(averages)


def smoothed_in_one_loop(per_step: bool):
    def f(x):
        def body(state, _):
            c, average, top = state
            c = step(c)
            average = 0.9 * average + 0.1 * c
            if per_step:
                return (c, average, top), jnp.max(average)
            return (c, average, jnp.maximum(top, average)), None

        top = jnp.zeros(()) if per_step else jnp.full_like(x, -jnp.inf)
        (_, _, top), partial = lax.scan(body, (x, jnp.zeros_like(x), top), None, length=L)
        return jnp.max(partial if per_step else top)

    return f


def filtered(x):
    """As `smoothed`, and only the filter's final state is used."""
    return lax.scan(lambda a, y: (0.9 * a + 0.1 * y, None), jnp.zeros_like(x), trajectory(x))[0]


def filtered_in_one_loop(x):
    def body(state, _):
        c, average = state
        c = step(c)
        return (c, 0.9 * average + 0.1 * c), None

    return lax.scan(body, (x, jnp.zeros_like(x)), None, length=L)[0][1]


SAVES = Bounds(memory_saving=L / 4)

CASES = (
    Case(
        "mean and max of one output",
        mean_and_max,
        {"two partials per step": mean_and_max_per_step},
        start,
        (0,),
        bounds=SAVES,
    ),
    Case(
        "mean and variance over time of one output",
        mean_and_variance_over_time,
        {"Welford": welford, "shifted sums": shifted_sums},
        start,
        (0,),
        bounds=SAVES,
    ),
    Case(
        "one output returned, another reduced", energies_and_states, {"partial per step": energies_partial}, start, (0,)
    ),
    Case(
        "second scan over the first one's outputs, reduced",
        smoothed,
        {
            "one loop, partial per step": smoothed_in_one_loop(True),
            "one loop, array carry": smoothed_in_one_loop(False),
        },
        start,
        (0,),
        bounds=SAVES,
    ),
    Case(
        "second scan over the first one's outputs, final state",
        filtered,
        {"one loop": filtered_in_one_loop},
        start,
        (0,),
        bounds=SAVES,
    ),
)
