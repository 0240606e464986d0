"""Claim: what a loop computes of its constants in every step has its derivative taken once, not in every step.

XLA moves such work out of the forward loop, and leaves its derivative in the backward loop.
"""

from __future__ import annotations

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


def arguments():
    a = normal(0, N, N) / N**0.5
    return a @ a.T + jnp.eye(N), normal(1, N)


def case(name, make, use, speedup):
    natural, hand = in_every_step(make, use), {FORM: once(make, use)}
    bounds = Bounds(over_hand=1.5, speedup=speedup)
    return Case(name, natural, hand, arguments, grad=(0,), grad_bounds=bounds)


def product(m, x):
    return m @ x


def bounded(m, x):
    return jnp.tanh(m @ x)


CASES = (
    case("inverse", jnp.linalg.inv, product, 20.0),
    case("Cholesky factor", jnp.linalg.cholesky, bounded, 20.0),
    case("softmax", lambda a: jax.nn.softmax(a, -1), product, 1.5),
    case("square", lambda a: a @ a, bounded, 10.0),
)
