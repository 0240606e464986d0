"""Claim: a sum of products of which a factor repeats along other axes costs what adding up its rows costs.

The expert form is a loop over the rows. `einsum` stands beside it: it is what one would try first.
"""

from __future__ import annotations

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


CASES = (
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
