"""Claim: a scan whose outputs are read through views of time (reversed, shifted, joined, summed up so far) stacks none.

Differences of neighbours need the step before, a running total is a carry, an initial state in front is one more term:
an expert writes each as a carry of the loop.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case

L, B, LAG = 256, 16_384, 3


def step(c):
    return 0.9 * c + 0.3 * jnp.cos(c)


def trajectory(x):
    return lax.scan(lambda c, _: (step(c),) * 2, x, None, length=L)[1]


def folded(combine, start):
    """The carries after all steps: `combine(old, new, carries)`, from `start(x)`."""

    def run(x):
        def body(s, _):
            c, *rest = s
            new = step(c)
            return (new, *combine(c, new, *rest)), None

        return lax.scan(body, (x, *start(x)), None, length=L)[0][1:]

    return run


def from_the_second(total):
    """What is made of all differences of outputs; that of the first one and the initial state is none of them."""

    def run(x):
        first = step(x)

        def body(s, _):
            c, acc = s
            new = step(c)
            return (new, acc + (new - c) ** 2), None

        return total(lax.scan(body, (first, jnp.zeros_like(x)), None, length=L - 1)[0][1])

    return run


def drift(x):
    """The first output is known before the others: an expert keeps it beside the largest distance."""
    first = step(x)

    def body(s, _):
        c, worst = s
        new = step(c)
        return (new, jnp.maximum(worst, jnp.max(jnp.abs(new - first)))), None

    return lax.scan(body, (first, jnp.float32(0)), None, length=L - 1)[0][1]


def largest_drift(x):
    ys = trajectory(x)
    return jnp.abs(ys - ys[0]).max()


def lagged(x):
    zero = jnp.zeros_like(x)

    def body(s, t):
        c, (a, b, d), acc = s
        new = step(c)
        return (new, (new, a, b), acc + jnp.where(t >= LAG, new * d, 0)), None

    return lax.scan(body, (x, (zero,) * 3, zero), jnp.arange(L))[0][2] / (L - LAG)


def start():
    return (jax.random.uniform(jax.random.key(0), (B,), minval=0.5, maxval=1.5),)


SAVING = Bounds(memory_saving=L / 4)
CASES = (
    Case("largest distance from the first", largest_drift, {"the first step in front": drift}, start, bounds=SAVING),
    Case(
        "reversed, summed",
        lambda x: trajectory(x)[::-1].sum(0),
        {"carried": lambda x: folded(lambda c, new, acc: (acc + new,), lambda x: (jnp.zeros_like(x),))(x)[0]},
        start,
        grad=(0,),
        bounds=SAVING,
    ),
    Case(
        "squared differences, summed over time",
        lambda x: (jnp.diff(trajectory(x), axis=0) ** 2).sum(0),
        {"carried": from_the_second(lambda acc: acc)},
        start,
        grad=(0,),
        bounds=SAVING,
    ),
    Case(
        "squared differences, summed",
        lambda x: (jnp.diff(trajectory(x), axis=0) ** 2).sum(),
        {"carried": from_the_second(jnp.sum)},
        start,
        grad=(0,),
        bounds=SAVING,
    ),
    Case(
        "autocovariance at lag 3",
        lambda x: (lambda ys: (ys[LAG:] * ys[:-LAG]).mean(0))(trajectory(x)),
        {"carried": lagged},
        start,
        grad=(0,),
        bounds=Bounds(over_hand=None, memory_over_hand=None, memory_saving=L / 16),
        notes="the last three outputs are carried",
    ),
    Case(
        "largest running sum",
        lambda x: jnp.cumsum(trajectory(x), 0).max(0),
        {
            "carried": lambda x: folded(
                lambda c, new, acc, top: (acc + new, jnp.maximum(top, acc + new)),
                lambda x: (jnp.zeros_like(x), jnp.full_like(x, -jnp.inf)),
            )(x)[1]
        },
        start,
        grad=(0,),
        bounds=SAVING,
    ),
    Case(
        "last running sum",
        lambda x: jnp.cumsum(trajectory(x), 0)[-1],
        {"carried": lambda x: folded(lambda c, new, acc: (acc + new,), lambda x: (jnp.zeros_like(x),))(x)[0]},
        start,
        grad=(0,),
        bounds=Bounds(over_hand=None, memory_over_hand=None, memory_saving=L / 8),
    ),
    Case(
        "with the initial state, averaged",
        lambda x: jnp.concatenate([x[None], trajectory(x)]).mean(0),
        {"carried": lambda x: folded(lambda c, new, acc: (acc + new,), lambda x: (x,))(x)[0] / (L + 1)},
        start,
        grad=(0,),
        bounds=SAVING,
    ),
)
