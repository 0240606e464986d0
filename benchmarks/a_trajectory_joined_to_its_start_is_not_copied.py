"""Claim: what a loop reads of a longer array, or adds to one, is not copied: neither time nor memory for it.

`scan(f, c, xs[1:])` and `concatenate([c[None], ys])` are how one writes filters and trajectories. The expert carries
the buffer and an index.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=1.15, memory_saving=10.0)
IN_GRADIENTS = Bounds(over_hand=None, memory_over_hand=None)


def written(step, carry, start, length, reverse=False):
    """`start`, whose entries from 1 on (or all but the last, backwards) are written by `step(k, carry) -> carry, y`."""

    def one(i, state):
        k = length - 1 - i if reverse else i + 1
        carry, y = step(k, state[0])
        return carry, lax.dynamic_update_index_in_dim(state[1], y, k, 0)

    return lax.fori_loop(0, length, one, (carry, start))[1]


def lorenz_step(x):
    def flow(x):
        return jnp.stack([10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]])

    a = flow(x)
    b = flow(x + 0.005 * a)
    return x + 0.01 * flow(x + 0.005 * b)


def lorenz(x):
    ys = lax.scan(lambda x, _: (lorenz_step(x),) * 2, x, None, length=500)[1]
    return jnp.concatenate([x[None], ys])


def lorenz_by_hand(x):
    start = jnp.zeros((501, *x.shape)).at[0].set(x)
    return written(lambda k, x: (lorenz_step(x),) * 2, x, start, 500)


def heat_step(u):
    return u.at[1:-1].add(0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]))


def heat(u):
    return jnp.concatenate([u[None], lax.scan(lambda u, _: (heat_step(u),) * 2, u, None, length=400)[1]])


def heat_by_hand(u):
    return written(lambda k, u: (heat_step(u),) * 2, u, jnp.zeros((401, *u.shape)).at[0].set(u), 400)


def moving_average(x):
    return jnp.concatenate([x[:1], lax.scan(lambda c, v: (0.9 * c + 0.1 * v,) * 2, x[0], x[1:])[1]])


def moving_average_by_hand(x):
    step = lambda k, c: (0.9 * c + 0.1 * lax.dynamic_index_in_dim(x, k, keepdims=False),) * 2  # noqa: E731
    return written(step, x[0], jnp.zeros_like(x).at[0].set(x[0]), len(x) - 1)


def returns(rewards, values):
    def step(c, rv):
        c = rv[0] + 0.99 * (0.05 * rv[1] + 0.95 * c)
        return c, c

    ys = lax.scan(step, values[-1], (rewards[:-1], values[1:]), reverse=True)[1]
    return jnp.concatenate([ys, values[-1:]])


def returns_by_hand(rewards, values):
    def step(k, c):
        r, v = (lax.dynamic_index_in_dim(x, at, keepdims=False) for x, at in ((rewards, k), (values, k + 1)))
        c = r + 0.99 * (0.05 * v + 0.95 * c)
        return c, c

    start = jnp.zeros_like(values).at[-1].set(values[-1])
    return written(step, values[-1], start, len(values) - 1, reverse=True)


def autoregression(noise):
    """A buffer whose first two rows are set before the loop that fills it."""
    start = jnp.zeros_like(noise).at[0].set(noise[0]).at[1].set(noise[1])
    step = lambda t, y: y.at[t].set(0.5 * y[t - 1] - 0.3 * y[t - 2] + noise[t])  # noqa: E731
    return lax.fori_loop(2, len(noise), step, start)


def case(name, natural, hand, *shapes):
    args = lambda: tuple(normal(k, *shape) for k, shape in enumerate(shapes))  # noqa: E731
    grad = tuple(range(len(shapes)))
    return Case(name, natural, {"a buffer": hand}, args, grad=grad, bounds=BOUNDS, grad_bounds=IN_GRADIENTS)


CASES = (
    case("2,000 Lorenz systems and their start", lorenz, lorenz_by_hand, (3, 2000)),
    case("heat, all times", heat, heat_by_hand, (2000,)),
    case("a moving average, first entry kept", moving_average, moving_average_by_hand, (1000, 256)),
    case("lambda returns, backwards", returns, returns_by_hand, (500, 512), (500, 512)),
    Case(
        "an autoregression whose start is set before",
        autoregression,
        {"as it is": autoregression},
        lambda: (normal(0, 801, 16),),
        bounds=Bounds(over_hand=1.10),
    ),
)
