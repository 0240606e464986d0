"""Claim: selections around loops, windows, the largest few, lookups and steps cost the same in other spellings.

A scalar `where` computes a loop that is not taken, windows at NumPy's indices are a gather, `x[argsort(-x)[:8]]` sorts,
an odd number of numbers finds its bins one by one, and steps that Python writes out are compiled one by one.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, memory_over_hand=None)
GAIN = Bounds(over_hand=1.10, speedup=1.5, memory_over_hand=None)
GAIN_ALONE = Bounds(over_hand=None, speedup=1.5, memory_over_hand=None)


def chain(x):
    return lax.fori_loop(0, 20, lambda _, c: jnp.tanh(c @ c.T @ c * 0.01), x)


def heat(u):
    return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1))


def windows(x):
    return x[np.arange(2001)[:, None] + np.arange(20)].mean(1)


def windows_by_hand(x):
    return lax.reduce_window(x, 0.0, lax.add, (20,), (1,), "VALID") / 20


def interpolated(x, y):
    return jnp.interp(x, jnp.linspace(-2, 2, y.size), y)


def interpolated_by_hand(x, y):
    at = jnp.clip((x + 2) * ((y.size - 1) / 4), 0, y.size - 1)
    k = jnp.minimum(at.astype(jnp.int32), y.size - 2)
    return y[k] + (at - k) * (y[k + 1] - y[k])


def summed_in_a_loop(x):
    return lax.fori_loop(0, x.size, lambda i, s: s + jnp.tanh(x[i]) * jnp.exp(-x[i]), 0.0)


def form(a, x):
    return jnp.einsum("ni,ij,nj->n", x, a, x)


CASES = (
    Case(
        "a loop behind a flag that is false",
        lambda flag, x: jnp.where(flag > 0, chain(x), x).sum(),
        {"cond": lambda flag, x: lax.cond(flag > 0, chain, lambda x: x, x).sum()},
        lambda: (jnp.float32(-1.0), normal(0, 150, 150)),
        grad=(1,),
        bounds=GAIN,
        grad_bounds=GAIN_ALONE,  # a call of some 20 us
    ),
    Case(
        "means of windows at NumPy's indices",
        windows,
        {"reduce_window": windows_by_hand},
        lambda: (normal(0, 2020),),
        grad=(0,),
        bounds=GAIN,
        grad_bounds=BOUNDS,
    ),
    Case(
        "the eight largest of each row",
        jax.vmap(lambda x: x[jnp.argsort(-x)[:8]]),
        {"top_k": lambda x: lax.top_k(x, 8)[0]},
        lambda: (normal(0, 100, 1001),),
        bounds=GAIN_ALONE,  # of equal entries the order stays that of the sort, which `top_k` need not keep
    ),
    Case(
        "an odd number of numbers in bins",
        lambda x, bins: jnp.digitize(x, bins),
        {"compared": lambda x, bins: sum((x >= b).astype(jnp.int32) for b in bins)},
        lambda: (normal(0, 100_003), jnp.linspace(-2, 2, 21)),
        bounds=GAIN_ALONE,
    ),
    Case(
        "interpolation on an even grid",
        interpolated,
        {"index arithmetic": interpolated_by_hand},
        lambda: (normal(0, 200_000), normal(1, 1001)),
        grad=(0,),
        bounds=GAIN,
        grad_bounds=GAIN,
    ),
    Case(
        "a sum of functions, number by number",
        summed_in_a_loop,
        {"sum": lambda x: jnp.sum(jnp.tanh(x) * jnp.exp(-x))},
        lambda: (normal(0, 10_000),),
        grad=(0,),
        bounds=GAIN,
        grad_bounds=GAIN,
    ),
    Case(
        "the last three of sorted rows",
        lambda x: jnp.sort(x, 1)[:, -3:],
        {"top_k": lambda x: lax.top_k(x, 3)[0][:, ::-1]},
        lambda: (normal(0, 500, 1000),),
        bounds=GAIN,
    ),
    Case(
        "40 steps of a heat equation, written out",
        lambda u: functools.reduce(lambda u, _: heat(u), range(40), u),
        {"scan": lambda u: lax.scan(lambda u, _: (heat(u), None), u, None, length=40)[0]},
        lambda: (normal(0, 5000),),
        bounds=GAIN,
    ),
    Case(
        "quadratic forms",
        form,
        {"two products": lambda a, x: jnp.sum((x @ a) * x, 1)},
        lambda: (normal(0, 150, 150), normal(1, 1501, 150)),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
)
