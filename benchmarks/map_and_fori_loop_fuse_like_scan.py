"""Claim: `lax.map` and a `fori_loop` that fills an array, when reduced, cost what the fused scan costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

N, D = 256, 20_000


def feature(x):
    return x / (1 + x * x)


def rows():
    return (normal(0, N, D),)


def filled(x):
    """`x -> trajectory` with an array that is written row by row, as one writes it coming from NumPy."""

    def body(i, state):
        c, out = state
        c = c - 0.05 * c * c
        return c, out.at[i].set(c)

    return lax.fori_loop(0, N, body, (x, jnp.zeros((N, D))))[1]


def partial(reduce_step, reduce_all):
    def f(x):
        def body(c, _):
            c = c - 0.05 * c * c
            return c, reduce_step(c)

        return reduce_all(lax.scan(body, x, None, length=N)[1])

    return f


def accumulated(x):
    def body(state, _):
        c, total = state
        c = c - 0.05 * c * c
        return (c, total + c), None

    return lax.scan(body, (x, jnp.zeros_like(x)), None, length=N)[0][1] / N


def start():
    return (jax.random.uniform(jax.random.key(0), (D,), minval=0.5, maxval=1.5),)


SAVES = Bounds(memory_saving=N / 4)

CASES = (
    Case(
        "lax.map, then sum over all",
        lambda xs: jnp.sum(lax.map(feature, xs)),
        {
            "partial per row": lambda xs: jnp.sum(lax.map(lambda x: jnp.sum(feature(x)), xs)),
            "no loop": lambda xs: jnp.sum(feature(xs)),
            "no loop, rows then all": lambda xs: jnp.sum(jnp.sum(feature(xs), 1)),
        },
        rows,
        (0,),
        bounds=SAVES,
    ),
    Case(
        "lax.map, then mean over rows",
        lambda xs: jnp.mean(lax.map(feature, xs), 0),
        {
            "array carry": lambda xs: lax.scan(lambda s, x: (s + feature(x), None), jnp.zeros(D), xs)[0] / N,
            "no loop": lambda xs: jnp.mean(feature(xs), 0),
        },
        rows,
        (0,),
        bounds=SAVES,
    ),
    Case(
        "lax.map, then max over all",
        lambda xs: jnp.max(lax.map(feature, xs)),
        {
            "partial per row": lambda xs: jnp.max(lax.map(lambda x: jnp.max(feature(x)), xs)),
            "no loop": lambda xs: jnp.max(feature(xs)),
            "no loop, rows then all": lambda xs: jnp.max(jnp.max(feature(xs), 1)),
        },
        rows,
        bounds=SAVES,
    ),
    Case(
        "fori_loop with .at[i].set, then mean over all",
        lambda x: jnp.mean(filled(x)),
        {"partial per step": partial(jnp.mean, jnp.mean)},
        start,
        (0,),
        bounds=SAVES,
    ),
    Case(
        "fori_loop with .at[i].set, then mean over time",
        lambda x: jnp.mean(filled(x), 0),
        {"array carry": accumulated},
        start,
        (0,),
        bounds=SAVES,
    ),
    Case(
        "fori_loop with .at[i].set, then max",
        lambda x: jnp.max(filled(x)),
        {"partial per step": partial(jnp.max, jnp.max)},
        start,
        bounds=SAVES,
    ),
    Case(
        "lax.map of a tanh, mean over rows",
        lambda x: lax.map(lambda r: 2 * jnp.tanh(r), x).mean(0),
        {"carried": lambda x: lax.scan(lambda c, r: (c + 2 * jnp.tanh(r), None), jnp.zeros(x.shape[1]), x)[0] / len(x)},
        lambda: (normal(0, 2000, 1000),),
        bounds=Bounds(over_natural=0.9),
    ),
)
