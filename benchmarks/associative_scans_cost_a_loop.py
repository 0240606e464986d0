"""Claim: an associative scan costs on a CPU what a loop over its entries costs, and so does its gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, over_natural=1.03, memory_over_hand=1.10)


def joined(p, q):
    """Two steps of h = a h + x as one."""
    return p[0] * q[0], q[0] * p[1] + q[1]


def recurrence(a, x):
    return lax.associative_scan(joined, (a, x))[1]


def recurrence_by_hand(a, x):
    def step(h, row):
        h = row[0] * h + row[1]
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), (a, x))[1]


def one_decay(a, x):
    return jax.vmap(lambda rows: recurrence(jnp.broadcast_to(a, rows.shape), rows))(x)


def one_decay_by_hand(a, x):
    def one(rows):
        def step(h, row):
            h = a * h + row
            return h, h

        return lax.scan(step, jnp.zeros_like(a), rows)[1]

    return jax.vmap(one)(x)


def state_space(A, x, B, C):
    return jnp.einsum("tdn,tn->td", recurrence(jnp.exp(-A), x[:, :, None] * B[:, None]), C)


def state_space_by_hand(A, x, B, C):
    def step(h, row):
        h = jnp.exp(-row[0]) * h + row[1][:, None] * row[2]
        return h, h @ row[3]

    return lax.scan(step, jnp.zeros_like(A[0]), (A, x, B, C))[1]


def matrices(x):
    return lax.associative_scan(lambda p, q: q @ p, x)


def matrices_by_hand(x):
    def step(m, a):
        m = a @ m
        return m, m

    return lax.scan(step, jnp.eye(x.shape[-1]), x)[1]


def advantages(errors, goes_on):
    return lax.associative_scan(joined, (0.9405 * goes_on, errors), reverse=True)[1]


def advantages_by_hand(errors, goes_on):
    def step(a, row):
        a = row[0] + 0.9405 * row[1] * a
        return a, a

    return lax.scan(step, jnp.float32(0), (errors, goes_on), reverse=True)[1]


def decays(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 1.0, shape), "float32")


def case(name, natural, hand, args, grad):
    return Case(name, natural, {"hand": hand}, args, grad, bounds=BOUNDS, grad_bounds=BOUNDS)


CASES = (
    case("recurrence", recurrence, recurrence_by_hand, lambda: (decays(0, 1000, 64), normal(1, 1000, 64)), (0, 1)),
    case(
        "recurrence of one number", recurrence, recurrence_by_hand, lambda: (decays(0, 1000), normal(1, 1000)), (0, 1)
    ),
    case(
        "recurrence of many",
        recurrence,
        recurrence_by_hand,
        lambda: (decays(0, 128, 2048), normal(1, 128, 2048)),
        (0, 1),
    ),
    case("one decay, a batch", one_decay, one_decay_by_hand, lambda: (decays(0, 32), normal(1, 8, 500, 32)), (0, 1)),
    case(
        "selective state space",
        state_space,
        state_space_by_hand,
        lambda: (decays(0, 500, 16, 4), normal(1, 500, 16), normal(2, 500, 4), normal(3, 500, 4)),
        (0, 1, 2, 3),
    ),
    case("products of matrices", matrices, matrices_by_hand, lambda: (0.4 * normal(0, 300, 4, 4),), (0,)),
    case("advantages", advantages, advantages_by_hand, lambda: (normal(0, 1000), decays(1, 1000)), (0, 1)),
)
