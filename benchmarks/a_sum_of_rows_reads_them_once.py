"""Claim: a sum or extremum of rows costs what a loop over the rows costs, if they are wide, weighted, or square.

The expert form is that loop. `einsum` stands beside it where there are weights: it is what one would try first.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=2.0)
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)


def by_rows(w, x, f=lambda row: row):
    """The sum of `w * f(x)` over the first axis; `w` has one entry where it repeats."""
    rows = lambda k, total: total + lax.dynamic_index_in_dim(w, k, keepdims=False) * f(x[k])  # noqa: E731
    return lax.fori_loop(0, x.shape[0], rows, jnp.zeros_like(x[0]))


def by_columns(w, x):
    """The sum over the second axis."""

    def step(k, total):
        return total + lax.dynamic_index_in_dim(w, k, 0) * lax.dynamic_index_in_dim(x, k, 1, keepdims=False)

    return lax.fori_loop(0, x.shape[1], step, jnp.zeros_like(x[:, 0]))


def joined(f, join=jnp.add, step=4):
    """What `join` makes of `f` of all rows, `step` rows at a time."""

    def by_hand(x):
        def rows(k, total):
            return functools.reduce(join, (f(x[step * k + i]) for i in range(step)), total)

        first = functools.reduce(join, (f(x[i]) for i in range(step)))
        return lax.fori_loop(1, x.shape[0] // step, rows, first)

    return {"four rows at a time": by_hand}


def mean_and_deviation(x):
    return jnp.mean(x, 0), jnp.std(x, 0)


def mean_and_deviation_by_hand(x):
    """A loop for the mean, another for the squares around it."""
    (total,) = joined(lambda row: row).values()
    mean = total(x) / x.shape[0]
    (squares,) = joined(lambda row: (row - mean) ** 2).values()
    return mean, jnp.sqrt(squares(x) / x.shape[0])


def field(x, y, w):
    return jnp.sum(jnp.exp(-((x[:, None] - y) ** 2)) * w[:, None], 0)


def field_by_hand(x, y, w):
    """Along the rows of the transposed array."""
    return jnp.sum(jnp.exp(-((y[:, None] - x) ** 2)) * w, 1)


def regression(a, x, b):
    return jnp.mean((a[:, None] * x - b[:, None]) ** 2)


CASES = (
    Case(
        "a field of 1,500 points, as many sources",
        field,
        {"along the rows": field_by_hand},
        lambda: (normal(0, 1500), normal(1, 1500), normal(2, 1500)),
        bounds=BOUNDS,
    ),
    Case(
        "weighted means of 1,000 rows of 1,000",
        lambda x, w: jnp.mean(jnp.tanh(x) * w[:, None], 0),
        {"weights after half": lambda x, w: jnp.mean((jnp.tanh(x) * w[:, None]) * 2, 0) / 2},
        lambda: (normal(0, 1000, 1000), normal(1, 1000)),
        bounds=BOUNDS,
    ),
    Case(
        "a regression of 2,000 on 2,000, its gradient",
        regression,
        {"as it stands": regression},
        lambda: (normal(0, 2000), normal(1, 2000), normal(2, 2000)),
        grad=(0, 1, 2),
        bounds=NEVER_SLOWER,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "mean of 48 images",
        lambda x: jnp.mean(x, 0),
        {name: lambda x, f=f: f(x) / 48 for name, f in joined(lambda row: row).items()},
        lambda: (normal(0, 48, 224, 224, 3),),
        bounds=BOUNDS,
    ),
    Case(
        "sum of a function of wide rows",
        lambda x: jnp.sum(jnp.exp(-x * x), 0),
        joined(lambda row: jnp.exp(-row * row)),
        lambda: (normal(0, 16, 40_000),),
        grad=(0,),
        bounds=BOUNDS,
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "maximum over an ensemble",
        lambda x: jnp.max(x, 0),
        joined(lambda row: row, jnp.maximum),
        lambda: (normal(0, 32, 128, 256),),
        bounds=BOUNDS,
    ),
    Case(
        "mean and deviation of an ensemble",
        mean_and_deviation,
        {"two loops": mean_and_deviation_by_hand},
        lambda: (normal(0, 32, 128, 256),),
        bounds=BOUNDS,
    ),
    Case(
        "a bias of 32,000 words, its gradient",
        lambda x, b: jnp.sum(jnp.tanh(x + b) ** 2),
        {"as it stands": lambda x, b: jnp.sum(jnp.tanh(x + b) ** 2)},
        lambda: (normal(0, 256, 32_000), normal(1, 32_000)),
        grad=(1,),
        bounds=NEVER_SLOWER,
        grad_bounds=Bounds(over_hand=None, speedup=1.5, memory_over_hand=None),
    ),
    Case(
        "rows of 16,000",
        lambda x: jnp.sum(jnp.exp(x), 0),
        {"as it stands": lambda x: jnp.sum(jnp.exp(x), 0)},
        lambda: (normal(0, 32, 16_000),),
        bounds=NEVER_SLOWER,
    ),
    Case(
        "weights of rows and columns",
        lambda w, x: jnp.sum(w[:, None] * x, 0),
        {"rows": lambda w, x: by_rows(w[:, None], x), "einsum": lambda w, x: jnp.einsum("ik,ijk->jk", w, x)},
        lambda: (normal(0, 64, 128), normal(1, 64, 64, 128)),
        bounds=BOUNDS,
    ),
    Case(
        "the same, larger",
        lambda w, x: jnp.sum(w[:, None] * x, 0),
        {"rows": lambda w, x: by_rows(w[:, None], x), "einsum": lambda w, x: jnp.einsum("ik,ijk->jk", w, x)},
        lambda: (normal(0, 64, 256), normal(1, 64, 128, 256)),
        bounds=BOUNDS,
    ),
    Case(
        "weights of columns",
        lambda w, x: jnp.sum(x * w, 1),
        {"columns": by_columns, "einsum": lambda w, x: jnp.einsum("jk,ijk->ik", w, x)},
        lambda: (normal(0, 64, 512), normal(1, 8, 64, 512)),
        bounds=BOUNDS,
    ),
    Case(
        "of a function",
        lambda w, x: jnp.sum(w[:, None] * jnp.exp(-x), 0),
        {"rows": lambda w, x: by_rows(w[:, None], x, lambda row: jnp.exp(-row))},
        lambda: (normal(0, 64, 128), normal(1, 64, 64, 128)),
        bounds=BOUNDS,
    ),
    Case(
        "a mixture of layers",
        lambda w, x: jnp.sum(jax.nn.softmax(w)[:, None, None] * x, 0),
        {"einsum": lambda w, x: jnp.einsum("i,ijk->jk", jax.nn.softmax(w), x)},
        lambda: (normal(0, 12), normal(1, 12, 128, 256)),
        grad=(0, 1),
        bounds=Bounds(over_hand=None, speedup=1.5),
        grad_bounds=NEVER_SLOWER,
    ),
    Case(
        "over the last axis",
        lambda w, x: jnp.sum(w[:, None] * x, 2),
        {"as it stands": lambda w, x: jnp.sum(w[:, None] * x, 2)},
        lambda: (normal(0, 64, 128), normal(1, 64, 64, 128)),
        bounds=NEVER_SLOWER,
    ),
)
