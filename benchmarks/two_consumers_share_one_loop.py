"""Claim: several uses of a scan's outputs share its one loop.

Two reductions of one output, one output reduced while another is returned, and a second scan over the first one's
outputs; sums beside a stack that is wanted, which join it only where that costs less than a pass behind it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

L, B = 64, 102_400
SMALL_L, SMALL_B = 1000, 1000  # of steps that take as long as starting a kernel or two


def step(c):
    return c - 0.05 * c * c


def start():
    return (jax.random.uniform(jax.random.key(0), (B,), minval=0.5, maxval=1.5),)


def trajectory(x, length=L):
    return lax.scan(lambda c, _: (step(c), step(c)), x, None, length=length)[1]


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


def gae(rewards, values, nexts, inside):
    """Generalised advantage estimation backwards over [steps, environments], and what `inside` makes of each step."""

    def body(a, inputs):
        reward, value, after = inputs
        a = reward + 0.99 * after - value + 0.99 * 0.95 * a
        return a, (a, *inside(a))

    return lax.scan(body, jnp.zeros_like(rewards[0]), (rewards, values, nexts), reverse=True)[1]


def advantages(rewards, values, nexts):
    (a,) = gae(rewards, values, nexts, lambda a: ())
    return (a - a.mean()) / (a.std() + 1e-8)


def advantages_centred_once(rewards, values, nexts):
    (a,) = gae(rewards, values, nexts, lambda a: ())
    a = a - a.mean()
    return a * (1 / (jnp.sqrt(jnp.mean(a * a)) + 1e-8))


def advantages_partial(rewards, values, nexts):
    a, sums, squares = gae(rewards, values, nexts, lambda a: (jnp.sum(a), jnp.sum(a * a)))
    mean = jnp.sum(sums) / a.size
    return (a - mean) * (1 / (jnp.sqrt(jnp.sum(squares) / a.size - mean * mean) + 1e-8))


def rollout(environments):
    return lambda: tuple(normal(k, 256, environments) for k in range(3))


def small_start():
    return (jax.random.uniform(jax.random.key(0), (SMALL_B,), minval=0.5, maxval=1.5),)


def softmax_over_time(length):
    return lambda x: jax.nn.softmax(trajectory(x, length), 0)


def softmax_of_the_stack(length):
    def f(x):
        ys = trajectory(x, length)
        weights = jnp.exp(ys - jnp.max(ys, 0))
        return weights * (1 / jnp.sum(weights, 0))

    return f


def softmax_carried(length):
    def f(x):
        def body(state, _):
            c, top, total = state
            c = step(c)
            higher = jnp.maximum(top, c)
            total = total * jnp.exp(top - higher) + jnp.exp(c - higher)
            return (c, higher, total), c

        start = (x, jnp.full_like(x, -jnp.inf), jnp.zeros_like(x))
        (_, top, total), ys = lax.scan(body, start, None, length=length)
        return jnp.exp(ys - top) * (1 / total)

    return f


def covariance(x):
    return jnp.cov(points(x), rowvar=False)


def points(x):
    """The trajectory of points of 64 coordinates, [steps x points, 64]."""
    return trajectory(x.reshape(-1, 64)).reshape(-1, 64)


def covariance_of_the_stack(x):
    ys = points(x)
    ys = ys - jnp.mean(ys, 0)
    return ys.T @ ys / (len(ys) - 1)


def covariance_carried(x):
    """Sums of the distance from the first points' mean, and of its products."""

    def body(state, _):
        c, total, products = state
        c = step(c)
        return (c, total + jnp.sum(c - shift, 0), products + (c - shift).T @ (c - shift)), None

    x = x.reshape(-1, 64)
    shift, n = jnp.mean(step(x), 0), L * len(x)
    (_, total, products), _ = lax.scan(body, (x, jnp.zeros(64), jnp.zeros((64, 64))), None, length=L)
    return (products - jnp.outer(total, total) / n) / (n - 1)


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
    *(
        Case(
            f"advantages of {environments} environments, normalised",
            advantages,
            {"centred once behind the loop": advantages_centred_once, "partials per step": advantages_partial},
            rollout(environments),
            notes="no gradient is taken through advantages",
        )
        for environments in (1000, 16_384)
    ),
    *(
        Case(
            f"softmax over {length} steps of {size} numbers, returned",
            softmax_over_time(length),
            {"of the stack": softmax_of_the_stack(length), "maximum and sum carried": softmax_carried(length)},
            begin,
            (0,),
        )
        for length, size, begin in ((SMALL_L, SMALL_B, small_start), (L, B, start))
    ),
    Case(
        "covariance of points over time",
        covariance,
        {"of the stack": covariance_of_the_stack, "sums carried": covariance_carried},
        start,
        (0,),
    ),
)
