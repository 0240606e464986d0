"""Claim: a step that takes one of several branches costs in a gradient what it costs without them.

JAX stores for each step what its branch made of constants, and adds a matrix to each weight's gradient in each. By hand
both branches are computed and selected from, and what is made of constants is made in front of the loop.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

N, T = 200, 300
BOUNDS = Bounds(over_hand=None, memory_over_hand=None)
GRADIENT = Bounds(over_hand=1.10, speedup=1.5)


def steps(body, xs):
    return lax.scan(lambda c, x: (body(c, x), None), xs[0], xs)[0]


def one_of_two(a, b, xs):
    return steps(lambda c, x: lax.cond(x[0] > 0, lambda: jnp.tanh(a @ c + x), lambda: jnp.tanh(b @ c - x)), xs)


def one_of_two_by_hand(a, b, xs):
    return steps(lambda c, x: jnp.where(x[0] > 0, jnp.tanh(a @ c + x), jnp.tanh(b @ c - x)), xs)


def gated(least, make=lambda a: a):
    return lambda a, xs: steps(lambda c, x: lax.cond(x[0] > least, lambda: jnp.tanh(make(a) @ c + x), lambda: c), xs)


def gated_by_hand(least, make=lambda a: a):
    def by_hand(a, xs):
        made = make(a)
        return steps(lambda c, x: jnp.where(x[0] > least, jnp.tanh(made @ c + x), c), xs)

    return by_hand


def normed(a):
    return a / jnp.linalg.norm(a, axis=1, keepdims=True)


def orthogonal(a):
    return jnp.linalg.qr(a + 12 * jnp.eye(len(a)))[0]


def experts(ws, xs):
    parts = [lambda c, k=k: c @ ws[k] for k in range(4)]
    body = lambda c, ix: (jnp.tanh(lax.switch(ix[0], parts, c) + ix[1]), None)  # noqa: E731
    return lax.scan(body, xs[0], (jnp.arange(len(xs)) % 4, xs))[0]


def experts_by_hand(ws, xs):
    body = lambda c, ix: (jnp.tanh(c @ ws[ix[0]] + ix[1]), None)  # noqa: E731
    return lax.scan(body, xs[0], (jnp.arange(len(xs)) % 4, xs))[0]


def weight(seed, n=N):
    return normal(seed, n, n) / n**0.5


def gate(name, natural, by_hand, steps=T, n=N, bounds=BOUNDS):
    return Case(
        name,
        natural,
        {"where": by_hand},
        lambda: (weight(0, n), normal(2, steps, n)),
        grad=(0, 1),
        bounds=bounds,
        grad_bounds=GRADIENT,
    )


CASES = (
    Case(
        "one of two weights",
        one_of_two,
        {"where": one_of_two_by_hand},
        lambda: (weight(0), weight(1), normal(2, T, N)),
        grad=(0, 1, 2),
        bounds=BOUNDS,
        grad_bounds=GRADIENT,
    ),
    gate("a weight or nothing", gated(0.0), gated_by_hand(0.0)),
    gate("a weight in few steps", gated(2.2), gated_by_hand(2.2), 200, 300),
    gate("rows of length one", gated(0.0, normed), gated_by_hand(0.0, normed), bounds=Bounds(speedup=1.3)),
    gate("an orthogonal factor", gated(0.0, orthogonal), gated_by_hand(0.0, orthogonal), 60, 120, Bounds(speedup=3.0)),
    gate("a product of constants", gated(0.0, lambda a: a @ a.T), gated_by_hand(0.0, lambda a: a @ a.T), 60, 120),
    Case(
        "one of four parts of the weights",
        experts,
        {"gathered": experts_by_hand},
        lambda: (normal(5, 4, N, N) / N**0.5, normal(2, T, N)),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=GRADIENT,
    ),
)
