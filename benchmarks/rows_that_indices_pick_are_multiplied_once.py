"""Claim: a product with rows that indices pick costs one of the rows from which they pick, and so does its gradient.

Layers on the edges of graphs, messages that are added up by node, and what one-hot rows pick.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)
NODES, EDGES, WIDTH = 1000, 8000, 64


def places(seed, count, size):
    return jax.random.randint(jax.random.key(seed), (count,), 0, size)


def edges(h, e, w, b, senders, receivers):
    return jnp.tanh(jnp.concatenate([h[senders], h[receivers], e], -1) @ w + b)


def edges_by_hand(h, e, w, b, senders, receivers):
    first, second, third = jnp.split(w, [WIDTH, 2 * WIDTH])
    return jnp.tanh((h @ first)[senders] + (h @ second)[receivers] + e @ third + b)


def messages(h, w, senders, receivers):
    return jax.ops.segment_sum(h[senders] @ w, receivers, NODES)


def messages_by_hand(h, w, senders, receivers):
    return jax.ops.segment_sum((h @ w)[senders], receivers, NODES)


def sums(x, labels):
    return jnp.sum((jax.nn.one_hot(labels, 10).T @ x) ** 2)


def sums_by_hand(x, labels):
    return jnp.sum(jax.ops.segment_sum(x, labels, 10) ** 2)


def graph():
    return places(8, EDGES, NODES), places(9, EDGES, NODES)


CASES = (
    Case(
        "a layer on edges",
        edges,
        {"by hand": edges_by_hand},
        lambda: (
            normal(0, NODES, WIDTH),
            normal(1, EDGES, 8),
            normal(2, 2 * WIDTH + 8, 32) / 8,
            normal(3, 32),
            *graph(),
        ),
        grad=(0, 1, 2, 3),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    Case(
        "messages, added up by node",
        messages,
        {"by hand": messages_by_hand},
        lambda: (normal(0, NODES, WIDTH), normal(1, WIDTH, WIDTH) / 8, *graph()),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    Case(
        "sums by one-hot rows",
        sums,
        {"by hand": sums_by_hand},
        lambda: (normal(0, 100_000, 16), places(1, 100_000, 10)),
        grad=(0,),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
)
