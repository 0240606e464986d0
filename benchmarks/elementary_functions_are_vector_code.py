"""Claim: functions for which XLA's CPU backend calls the C library take a third of the time, at most.

The result is the nearest float32 in all but a few of a thousand cases, whatever the argument. The yardstick is the
program as it stands, since a polynomial that an expert writes down holds for a small range only; that of Cody and
Waite for the sine up to some thousands is shown beside it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ._case import Bounds, Case, normal

THIRD = Bounds(over_hand=0.35, memory_over_hand=None)
SIZE = (28, 28, 128)  # of the sums in Mooncake.jl issue 361


def cody_waite(x):
    """sin, |x| up to some thousands, error 1.3 units in the last place."""
    n = jnp.round(x * np.float32(1 / np.pi))
    r = x - n * np.float32(3.140625)
    r = r - n * np.float32(9.67502593994140625e-4)
    r = r - n * np.float32(1.509957990978376432e-7)
    u = r * r
    s = r + r * u * (-1.6666665e-1 + u * (8.3333291e-3 + u * (-1.9840761e-4 + u * (2.7525562e-6 - 2.3889859e-8 * u))))
    return jnp.where(n.astype(jnp.int32) & 1, -s, s)


def case(name, f, args=lambda: (3 * normal(0, *SIZE),), bounds=THIRD, grad=(), **hand):
    return Case(name, f, {"as it stands": f, **hand}, args, grad, bounds=bounds, grad_bounds=bounds)


def inside():
    return (normal(0, *SIZE) / 6,)


def pair():
    return normal(0, *SIZE), normal(1, *SIZE)


def positive():
    return jnp.abs(normal(0, *SIZE)) + 0.01, normal(1, *SIZE)


CASES = (
    *(case(name, getattr(jnp, name)) for name in ("sin", "cos", "tan", "arctan", "cbrt")),
    *(case(name, getattr(jnp, name), inside) for name in ("arcsin", "arccos")),
    case("arctan2", jnp.arctan2, pair),
    case("power of arrays", lambda x, y: x**y, positive, Bounds(over_hand=0.9, memory_over_hand=None)),
    case("power 2.2", lambda x: x**2.2, lambda: positive()[:1], Bounds(over_hand=0.9, memory_over_hand=None)),
    case("sum of arctan (issue 361)", lambda x: jnp.arctan(x).sum(), grad=(0,)),
    case("sum of sin (issue 361)", lambda x: jnp.sin(x).sum(), grad=(0,)),
    case("sin in bfloat16", jnp.sin, lambda: (normal(0, *SIZE).astype(jnp.bfloat16),)),
    case(
        "rotary embedding",
        lambda q, t: q * jnp.cos(t) + jnp.roll(q, 1, -1) * jnp.sin(t),
        lambda: (normal(0, 8, 512, 64), jnp.arange(512.0)[:, None] * jnp.arange(64.0)),
        Bounds(over_hand=1.03, memory_over_hand=None),
    ),
    case(
        "a broadcast sine",
        lambda x, A: A * jnp.sin(x)[:, None],
        lambda: (normal(0, 1000), normal(1, 1000, 1000)),
        Bounds(over_hand=1.03, memory_over_hand=None),
    ),
    case(
        "an outer product of a cosine",
        lambda x, y: x @ jnp.cos(y),
        lambda: (normal(0, 300, 1), normal(1, 1, 350)),
        Bounds(over_hand=0.25, memory_over_hand=None),
    ),
    case(
        "sixteen elements in a loop",
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 1.2 + 0.01, None), x, None, length=2000)[0],
        lambda: (normal(0, 16),),
        Bounds(over_hand=1.0, memory_over_hand=None),
    ),
    Case(
        "sin, beside a polynomial for a small range",
        jnp.sin,
        {"Cody and Waite": cody_waite},
        lambda: (3 * normal(0, *SIZE),),
        bounds=Bounds(over_hand=None, memory_over_hand=None),
    ),
)
