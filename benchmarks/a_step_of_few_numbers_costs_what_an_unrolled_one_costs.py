"""Claim: a step of a loop of few numbers costs what it computes, not what counting and indexing cost.

The expert writes `unroll=8`, of steps of many operations `unroll=4`.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=1.15, memory_over_hand=None)


def average(x, **options):
    return lax.scan(lambda s, x: ((s := 0.9 * s + 0.1 * x), s), 0.0, x, **options)[1]


def controller(x, **options):
    def step(c, r):
        y, i, before = c
        e = r - y
        i = i + 0.01 * e
        y = y + 0.01 * (1.2 * e + 0.5 * i + (e - before) - y)
        return (y, i, e), y

    return lax.scan(step, (0.0, 0.0, 0.0), x, **options)[1]


def filtered(x, **options):
    def step(c, x):
        e = x - (0.5 * c[0] + 0.2 * c[1])
        return (x, e), e

    return lax.scan(step, (0.0, 0.0), x, **options)[1]


def excess(x, **options):
    return lax.scan(lambda s, x: ((s := jnp.maximum(0.0, s + x - 0.1)), s), 0.0, x, **options)[1]


def epidemic(x, **options):
    def step(s, z):
        sick = 0.3 * s[0] * s[1] * (1 + 0.1 * z)
        s = (s[0] - sick, s[1] + sick - 0.1 * s[1], s[2] + 0.1 * s[1])
        return s, jnp.stack(s)

    return lax.scan(step, (0.99, 0.01, 0.0), x, **options)[1]


def oscillator(x, **options):
    def step(s, f):
        v = s[1] - 0.01 * (s[0] + 0.1 * s[1] - f)
        return (s[0] + 0.01 * v, v), s[0]

    return lax.scan(step, (1.0, 0.0), x, **options)[1]


def case(name, f, bounds=BOUNDS):
    hand = {f"unroll={k}": partial(f, unroll=k) for k in (4, 8)}
    return Case(name, f, hand, lambda: (normal(0, 100_000),), grad=(0,), bounds=bounds, grad_bounds=bounds)


CASES = (
    case("moving average", average),
    case("controller", controller),
    case("autoregressive filter", filtered),
    case("sum that is never negative", excess),
    case("epidemic", epidemic),
    case("driven oscillator", oscillator),
)
