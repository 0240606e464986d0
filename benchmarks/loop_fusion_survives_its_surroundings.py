"""Claim: a reduced scan is fused wherever it stands.

Reversed, with inputs, under one or two `vmap`s, in a `cond`, in another scan, in an inner `jit`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

L, B = 64, 204_800
SAVES = Bounds(memory_saving=L / 4)


def step(c, u=0.0):
    return c - 0.05 * c * c + u


def start():
    return (jax.random.uniform(jax.random.key(0), (B,), minval=0.5, maxval=1.5),)


def driven():
    return (*start(), 0.01 * normal(1, L, B))


def natural(x, us=None, reverse=False):
    def body(c, u):
        c = step(c, 0.0 if u is None else u)
        return c, c

    return jnp.mean(lax.scan(body, x, us, length=L, reverse=reverse)[1])


def hand(x, us=None, reverse=False):
    def body(c, u):
        c = step(c, 0.0 if u is None else u)
        return c, jnp.mean(c)

    return jnp.mean(lax.scan(body, x, us, length=L, reverse=reverse)[1])


def case(name, of, args=start, grad=(0,), **more):
    """`of` makes a program from the natural or the expert form of the scan and its reduction."""
    return Case(name, of(natural), {"partial per step": of(hand)}, args, grad, bounds=SAVES, **more)


def rows(x):
    return x.reshape(-1, 16)


def weighted_natural(x, us):
    ys = lax.scan(lambda c, u: (step(c, u),) * 2, x, us, reverse=True)[1]
    return jnp.sum(ys * us, 0)


def weighted_hand(x, us):
    def body(state, u):
        c, total = state
        c = step(c, u)
        return (c, total + c * u), None

    return lax.scan(body, (x, jnp.zeros_like(x)), us, reverse=True)[0][1]


def outer_scan(inner):
    def f(x):
        def body(x, _):
            return x * 0.99, inner(x)

        return lax.scan(body, x, None, length=4)[1]

    return f


CASES = (
    case("reversed", lambda f: lambda x: f(x, reverse=True)),
    case("with inputs", lambda f: f, driven),
    case("reversed, with inputs", lambda f: lambda x, us: f(x, us, reverse=True), driven),
    Case(
        "reversed, outputs weighted by the inputs",
        weighted_natural,
        {"array carry": weighted_hand},
        driven,
        (0,),
        bounds=SAVES,
    ),
    case("under vmap", lambda f: lambda x: jax.vmap(f)(rows(x))),
    case("under two vmaps", lambda f: lambda x: jax.vmap(jax.vmap(f))(x.reshape(64, -1, 8))),
    case("in a cond", lambda f: lambda x: lax.cond(x[0] > 0, f, lambda x: jnp.sum(x), x)),
    case("in another scan", outer_scan),
    case("in an inner jit", lambda f: lambda x: jax.jit(f)(x) + 1.0),
    case("in an inner jit, under vmap", lambda f: lambda x: jax.vmap(jax.jit(f))(rows(x))),
)
