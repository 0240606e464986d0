"""Claim: a list of functions of one array, each with a number of its own, is never slower; few entries take a loop.

`[f(x, c[k]) for k in range(20)]` is 20 kernels. Of few entries a loop of them takes less time than starting them; of
many it took 1.2 to 3 times as long in gradients, and rows that are put together only to be reduced up to 38 times.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

N = 20
NEVER_SLOWER = Bounds(over_hand=None, over_natural=1.05, memory_over_hand=None)


def each(one):
    def natural(x, c):
        return jnp.stack([one(x, c[k]) for k in range(N)])

    def by_hand(x, c):
        return jax.lax.map(lambda k: one(x, k), c)

    return natural, by_hand


def kernel(x, c):
    return jnp.exp(-((x - c) ** 2)).mean()


def threshold(x, c):
    return jax.nn.sigmoid(9 * (x - c)).mean()


def excess(x, c):
    return jnp.maximum(x - c, 0.0).sum() / x.size


def weighted(x, c):
    return (x**2 * c + x * c**2).mean()


def weighted_by_hand(x, c):
    return (x**2).mean() * c + x.mean() * c**2


def rows_kernel(x, c):
    return jnp.exp(-((x - c) ** 2).sum(-1)).mean()


def layer(x, w):
    return jnp.tanh(x @ w).mean()


def windows(x):
    return [x[k : x.size - N + k] for k in range(N)]


def rolls(x):
    return [jnp.roll(x, k) for k in range(N)]


def reduced(rows, how):
    return lambda x: how(jnp.stack(rows(x)), 0)


def one_by_one(rows, how):
    return lambda x: functools.reduce(how, rows(x))


def case(name, natural, by_hand, *shapes, grad=()):
    def args():
        return tuple(normal(k, *shape) for k, shape in enumerate(shapes))

    return Case(name, natural, {"by hand": by_hand}, args, grad=grad, bounds=NEVER_SLOWER, grad_bounds=NEVER_SLOWER)


def of_numbers(name, one, n):
    return case(f"{name}, {n:,} entries", *each(one), (n,), (N,), grad=(0, 1))


CASES = (
    *(of_numbers("kernel means", kernel, n) for n in (1_000, 30_000, 300_000)),
    *(of_numbers("soft thresholds", threshold, n) for n in (1_000, 30_000)),
    *(of_numbers("excesses", excess, n) for n in (1_000, 30_000)),
    case("polynomials, 100,000 entries", each(weighted)[0], weighted_by_hand, (100_000,), (N,), grad=(0, 1)),
    case("kernel means of points", *each(rows_kernel), (10_000, 4), (N, 4), grad=(0, 1)),
    case("layers of 4 x 4", *each(layer), (25_000, 4), (N, 4, 4), grad=(0, 1)),
    case("sum of rolled rows, 700", reduced(rolls, jnp.sum), one_by_one(rolls, jnp.add), (700,)),
    case("sum of rolled rows, 30,000", reduced(rolls, jnp.sum), one_by_one(rolls, jnp.add), (30_000,)),
    case("sum of rolled rows, 300,000", reduced(rolls, jnp.sum), one_by_one(rolls, jnp.add), (300_000,)),
    case("minimum of windows", reduced(windows, jnp.min), one_by_one(windows, jnp.minimum), (300_000,)),
    case("minimum of windows, one by one", one_by_one(windows, jnp.minimum), reduced(windows, jnp.min), (300_000,)),
)
