"""Claim: a program of a few thousand operations runs in the thread that calls it, at a half of plain JAX's time.

JAX's CPU client has another thread run what counts 1,000 operations or more, and counts one step of a loop. The expert
form is a loop over blocks, or lanes, written by hand. (`jax_cpu_enable_async_dispatch=False` would do it too, for all
that a process runs.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, memory_over_hand=None, speedup=1.3)
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)


def mapped(f, block):
    """`f`, entry by entry, in blocks."""

    def run(*xs):
        ys = lax.map(lambda parts: f(*parts), tuple(x.reshape(-1, block) for x in xs))
        return jax.tree.map(jnp.ravel, ys)

    return run


def summed(f, block):
    """The sum of `f` over all entries, in blocks."""

    def run(x):
        return lax.scan(lambda total, part: (total + jnp.sum(f(part)), None), 0.0, x.reshape(-1, block))[0]

    return run


def squares_in_lanes(x, lanes=128):
    """The sum of squares, a total for each lane, and its gradient."""

    def step(totals, row):
        return totals + row * row, 2 * row

    totals, slopes = lax.scan(step, jnp.zeros(lanes), x.reshape(-1, lanes))
    return jnp.sum(totals), slopes.reshape(x.shape)


def off_in_lanes(x, y, lanes=128):
    """The mean of |x - y|, in the same way."""

    def step(totals, rows):
        return totals + jnp.abs(rows[0] - rows[1]), None

    totals, _ = lax.scan(step, jnp.zeros(lanes), (x.reshape(-1, lanes), y.reshape(-1, lanes)))
    return jnp.sum(totals) / x.size


def adam(p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def least_squares(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def least_squares_in_blocks(w, x, y):
    def step(sums, rows):
        value, slope = sums
        x, y = rows
        off = x @ w - y
        return (value + jnp.sum(off**2), slope + 2 * off @ x), None

    blocks = x.reshape(-1, 10, x.shape[1]), y.reshape(-1, 10)
    (value, slope), _ = lax.scan(step, (jnp.zeros(()), jnp.zeros_like(w)), blocks)
    return value / len(y), slope / len(y)


def network(weights, x, y):
    first, bias, second = weights
    return jnp.mean((jnp.tanh(x @ first + bias) @ second - y) ** 2)


def mixture(x, centres):
    return -jnp.mean(jax.nn.logsumexp(-0.5 * (x[:, None] - centres) ** 2, -1))


def histogram(x):
    return jnp.histogram(x, 50)[0]


def calls(price):
    """Black and Scholes' prices of options to buy at 1."""
    up = (jnp.log(price) + 0.02) / 0.2
    return price * jax.scipy.stats.norm.cdf(up) - jax.scipy.stats.norm.cdf(up - 0.2)


def rows_times(block):
    return lambda a, x: lax.map(lambda rows: rows @ x, a.reshape(-1, block, a.shape[1])).reshape(-1)


def as_it_stands(f):
    return {"as it stands": f}


GRADIENT = jax.value_and_grad(network)


def newton(x):
    return lax.fori_loop(0, 50, lambda _, x: x - (x**3 - 2) / (3 * x**2), x)


CASES = (
    Case("sum of 4,000", jnp.sum, {"blocks": summed(lambda x: x, 250)}, lambda: (normal(0, 4000),), bounds=BOUNDS),
    Case(
        "sum of squares",
        lambda x: jnp.sum(x * x),
        {"blocks": summed(lambda x: x * x, 125)},
        lambda: (normal(0, 2000),),
        bounds=BOUNDS,
    ),
    Case(
        "a polynomial",
        lambda x: x * x + 3 * x,
        {"blocks": mapped(lambda x: x * x + 3 * x, 80)},
        lambda: (normal(1, 4000),),
        bounds=BOUNDS,
    ),
    Case(
        "Adam, 1,000 weights",
        adam,
        {"blocks": mapped(adam, 10)},
        lambda: (*(normal(k, 1000) for k in range(3)), normal(4, 1000) ** 2),
        bounds=BOUNDS,
    ),
    Case(
        "60 x 60 times a vector",
        jnp.matmul,
        {"blocks": rows_times(4)},
        lambda: (normal(0, 60, 60), normal(1, 60)),
        bounds=BOUNDS,
    ),
    Case(
        "least squares, value and gradient",
        jax.value_and_grad(least_squares),
        {"blocks": least_squares_in_blocks},
        lambda: (normal(0, 10), normal(1, 100, 10), normal(2, 100)),
        bounds=BOUNDS,
    ),
    Case(
        "network of 8, value and gradient",
        GRADIENT,
        as_it_stands(GRADIENT),
        lambda: ([normal(0, 3, 8), normal(1, 8), normal(2, 8)], normal(3, 50, 3), normal(4, 50)),
        bounds=BOUNDS,
    ),
    Case("softmax of 480", jax.nn.softmax, as_it_stands(jax.nn.softmax), lambda: (normal(0, 480),), bounds=BOUNDS),
    Case(
        "mixture of four", mixture, as_it_stands(mixture), lambda: (normal(0, 300), normal(1, 4)), bounds=NEVER_SLOWER
    ),
    Case("histogram of 500", histogram, as_it_stands(histogram), lambda: (normal(0, 500),), bounds=NEVER_SLOWER),
    Case("calls of 100 options", calls, as_it_stands(calls), lambda: (normal(0, 100) ** 2 + 1,), bounds=NEVER_SLOWER),
    Case(
        "Newton's steps of 1,001",
        newton,
        as_it_stands(newton),
        lambda: (1 + normal(0, 1001) ** 2,),
        bounds=NEVER_SLOWER,
    ),
    Case(
        "short already", lambda x: 2 * x, as_it_stands(lambda x: 2 * x), lambda: (normal(0, 900),), bounds=NEVER_SLOWER
    ),
    Case(
        "squares of 100,352, value and gradient",
        jax.value_and_grad(lambda x: jnp.sum(x**2)),
        {"lanes": squares_in_lanes},
        lambda: (normal(0, 128, 1, 28, 28),),
        bounds=BOUNDS,
    ),
    Case(
        "mean of 25,600 differences",
        lambda x, y: jnp.mean(jnp.abs(x - y)),
        {"lanes": off_in_lanes},
        lambda: (normal(0, 25600), normal(1, 25600)),
        bounds=BOUNDS,
    ),
    Case(
        "Adam, 25,600 weights",
        adam,
        as_it_stands(adam),
        lambda: tuple(normal(k, 25600) ** 2 for k in range(4)),
        bounds=NEVER_SLOWER,
    ),
    Case(
        "long", adam, as_it_stands(adam), lambda: tuple(normal(k, 300_000) ** 2 for k in range(4)), bounds=NEVER_SLOWER
    ),
)
