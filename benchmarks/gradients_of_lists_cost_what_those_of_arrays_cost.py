"""Claim: what is computed of the slices of an array in a Python list costs what the array does, its gradient too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, over_natural=1.03, memory_over_hand=1.10)


def row_sum(row):
    return jnp.sum(jnp.tanh(row) * row)


def rows(x):
    return sum(row_sum(x[i]) for i in range(len(x)))


def few_rows(x):
    return sum(row_sum(x[i]) for i in range(10))


def squares(x):
    return sum(jnp.dot(x[i], x[i]) for i in range(len(x)))


def stacked_rows(x):
    return jnp.stack([jax.nn.softmax(row) for row in x])


def stacked_columns(x):
    return jnp.stack([jnp.tanh(x[:, i]) * 2 for i in range(x.shape[1])], 1)


def blocks(x):
    return jnp.stack([jnp.sum(jnp.tanh(x[64 * i : 64 * i + 64])) for i in range(125)])


def frames(x):
    return jnp.stack([jnp.sum(jnp.tanh(x[64 * i : 64 * i + 128])) for i in range(124)])


def frames_by_hand(x):
    sums = jnp.tanh(x).reshape(125, 64).sum(1)
    return sums[:-1] + sums[1:]


def windows(x):
    return jnp.stack([jnp.dot(x[i : i + 8], x[i : i + 8]) for i in range(60)])


def windows_by_hand(x):
    return sum(x[k : k + 60] ** 2 for k in range(8))


def numbers(x):
    return sum(jnp.sin(x[i]) for i in range(len(x)))


def differences(x):
    return sum(jnp.sum((x[i + 1] - x[i]) ** 2) for i in range(len(x) - 1))


def layers(x, w):
    return sum(jnp.sum(jnp.tanh(w @ x[i])) for i in range(len(x)))


def sine_step(x):
    return x + 0.1 * jnp.sin(x)


def euler(x):
    steps = [x]
    for _ in range(24):
        steps.append(sine_step(steps[-1]))
    return jnp.stack(steps)


def euler_by_hand(x):
    later = lax.scan(lambda c, _: (sine_step(c),) * 2, x, None, length=24)[1]
    return jnp.concatenate([x[None], later])


def lorenz_step(s):
    x, y, z = s
    return s + 0.01 * jnp.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def recurrent(w, x):
    h = jnp.zeros_like(x[0])
    for t in range(len(x)):
        h = jnp.tanh(h @ w + x[t])
    return h


def recurrent_by_hand(w, x):
    return lax.scan(lambda h, v: (jnp.tanh(h @ w + v), None), jnp.zeros_like(x[0]), x)[0]


def lorenz(s):
    for _ in range(20):
        s = lorenz_step(s)
    return s


def lorenz_by_hand(s):
    return lax.fori_loop(0, 20, lambda i, s: lorenz_step(s), s)


def case(name, natural, hand, args, grad=(0,)):
    return Case(name, natural, {"hand": hand}, args, grad, bounds=BOUNDS, grad_bounds=BOUNDS)


CASES = (
    case("sum over rows", rows, lambda x: jnp.sum(jnp.tanh(x) * x), lambda: (normal(0, 120, 64),)),
    case("sum over 500 rows", rows, lambda x: jnp.sum(jnp.tanh(x) * x), lambda: (normal(0, 500, 256),)),
    case("ten rows", few_rows, few_rows, lambda: (normal(0, 10, 8),)),
    case("squares of rows", squares, lambda x: jnp.sum(x * x), lambda: (normal(0, 500, 256),)),
    case("stack of rows", stacked_rows, lambda x: jax.nn.softmax(x, 1), lambda: (normal(0, 100, 64),)),
    case("stack of columns", stacked_columns, lambda x: jnp.tanh(x) * 2, lambda: (normal(0, 64, 100),)),
    case("blocks", blocks, lambda x: jnp.tanh(x).reshape(125, 64).sum(1), lambda: (normal(0, 8000),)),
    case("frames, half over each other", frames, frames_by_hand, lambda: (normal(0, 8000),)),
    case("windows over each other", windows, windows_by_hand, lambda: (normal(0, 67),)),
    case("numbers", numbers, lambda x: jnp.sum(jnp.sin(x)), lambda: (normal(0, 200),)),
    case("differences", differences, lambda x: jnp.sum((x[1:] - x[:-1]) ** 2), lambda: (normal(0, 200, 64),)),
    case(
        "one layer for all rows",
        layers,
        lambda x, w: jnp.sum(jnp.tanh(x @ w.T)),
        lambda: (normal(0, 100, 64), normal(1, 64, 64)),
        (0, 1),
    ),
    case(
        "recurrent network, 40 steps",
        recurrent,
        recurrent_by_hand,
        lambda: (normal(0, 64, 64) / 8, normal(1, 40, 16, 64)),
        (0, 1),
    ),
    case("trajectory of sines", euler, euler_by_hand, lambda: (normal(0, 64),)),
    case("Lorenz system, 20 steps", lorenz, lorenz_by_hand, lambda: (normal(0, 3),), ()),
)
