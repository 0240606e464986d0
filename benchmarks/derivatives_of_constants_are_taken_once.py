"""Claim: what a loop computes of its constants in every step has its derivative taken once, not in every step.

XLA moves such work out of the forward loop, and leaves its derivative in the backward loop.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

STEPS, N = 200, 128
FORM = "computed before the loop"


def in_every_step(make, use):
    return lambda a, x: lax.scan(lambda x, _: (use(make(a), x), None), x, None, length=STEPS)[0]


def once(make, use):
    def f(a, x):
        m = make(a)
        return lax.scan(lambda x, _: (use(m, x), None), x, None, length=STEPS)[0]

    return f


def arguments(n):
    a = normal(0, n, n) / n**0.5
    return a @ a.T + jnp.eye(n), normal(1, n)


def case(name, make, use, speedup, n=N, over_hand=1.5):
    natural, hand = in_every_step(make, use), {FORM: once(make, use)}
    bounds = Bounds(over_hand=over_hand, speedup=speedup)
    return Case(name, natural, hand, partial(arguments, n), grad=(0,), grad_bounds=bounds)


def product(m, x):
    return m @ x


def bounded(m, x):
    return jnp.tanh(m @ x)


def softmax(a):
    return jax.nn.softmax(a, -1)


CASES = (
    case("inverse", jnp.linalg.inv, product, 20.0),
    case("Cholesky factor", jnp.linalg.cholesky, bounded, 20.0),
    case("softmax", softmax, product, 1.5),
    case("square", lambda a: a @ a, bounded, 10.0),
    # So few rows that a step's product is a short kernel.
    case("inverse of 60 rows", jnp.linalg.inv, bounded, 10.0, 60, 1.2),
    case("softmax of 60 rows", softmax, bounded, 1.5, 60, 1.2),
    case("unit columns of 60 rows", lambda a: a / jnp.linalg.norm(a, axis=0), bounded, 1.5, 60, 1.2),
)
