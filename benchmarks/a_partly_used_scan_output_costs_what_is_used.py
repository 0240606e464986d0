"""Claim: a scan of which only the last, the last few or every k-th outputs are used stacks only those.

The output is a function of the carry that the loop itself does not need (an observation of the state), so that steps
whose output is not used should not compute it either.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case

L, B, K = 500, 20_000, 10


def step(c):
    return c - 0.05 * c * c


def observe(c):
    return jnp.tanh(2 * c + 1)


def advance(c, n):
    """`n` steps without outputs; a scan, so that it has a gradient."""
    return lax.scan(lambda c, _: (step(c), None), c, None, length=n)[0]


def observed(x):
    def body(c, _):
        c = step(c)
        return c, observe(c)

    return lax.scan(body, x, None, length=L)[1]


def last_carried(x):
    return lax.scan(lambda s, _: ((step(s[0]), observe(step(s[0]))), None), (x, x), None, length=L)[0][1]


def last_few_peeled(x):
    def body(c, _):
        c = step(c)
        return c, observe(c)

    return lax.scan(body, advance(x, L - 5), None, length=5)[1]


def thinned(x):
    def body(c, _):
        c = advance(c, K)
        return c, observe(c)

    return lax.scan(body, x, None, length=L // K)[1]


def thinned_unrolled(x):
    def body(c, _):
        for _ in range(K):
            c = step(c)
        return c, observe(c)

    return lax.scan(body, x, None, length=L // K)[1]


def start():
    return (jax.random.uniform(jax.random.key(0), (B,), minval=0.5, maxval=1.5),)


CASES = (
    Case(
        "last output",
        lambda x: observed(x)[-1],
        {"peeled": lambda x: observe(advance(x, L)), "carried": last_carried},
        start,
        grad=(0,),
        bounds=Bounds(memory_saving=L / 4),
    ),
    Case(
        "last five outputs",
        lambda x: observed(x)[-5:],
        {"peeled": last_few_peeled},
        start,
        grad=(0,),
        bounds=Bounds(memory_saving=L / 5 / 4),
    ),
    Case(
        "every tenth output",
        lambda x: observed(x)[K - 1 :: K],
        {"nested loops": thinned, "inner loop unrolled": thinned_unrolled},
        start,
        grad=(0,),
        bounds=Bounds(memory_saving=K / 4),
        notes="thinning, as in MCMC",
    ),
    Case(
        "every tenth output, averaged",
        lambda x: jnp.mean(observed(x)[K - 1 :: K], 0),
        {
            "nested loops": lambda x: (
                lax.scan(
                    lambda s, _: (lambda c: ((c, s[1] + observe(c)), None))(advance(s[0], K)),
                    (x, jnp.zeros_like(x)),
                    None,
                    length=L // K,
                )[0][1]
                / (L // K)
            )
        },
        start,
        grad=(0,),
        bounds=Bounds(memory_saving=L / 4),
    ),
)
