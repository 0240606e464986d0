"""Claim: cumulative operations read and write memory a few times, not log2(n) times.

Along long rows the expert form is a scan. Along the last axis it is a product with triangular matrices for sums of
finite numbers, which turns one infinity into a block of nan and is no yardstick for a rule that has to keep it: there
the bound is the time of the natural form alone.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

SCANNED = Bounds(over_hand=None, speedup=2.0, memory_over_hand=None)
FASTER = Bounds(over_hand=None, memory_over_hand=None)


def scanned(combine, first):
    def form(x):
        return lax.scan(lambda c, v: (combine(c, v),) * 2, jnp.full(x.shape[1:], first, x.dtype), x)[1]

    return form


def along(f, axis, **options):
    return lambda x: f(x, axis, **options)


def sums(name, shape, axis, bounds=FASTER, hand=None, **options):
    natural = along(lax.cumsum, axis, **options)
    return Case(name, natural, hand or {"as it stands": natural}, lambda: (normal(0, *shape),), bounds=bounds)


CASES = (
    sums("sum down columns", (512, 1024), 0, SCANNED, {"scan": scanned(lax.add, 0)}),
    sums("sum down short rows", (1000, 200), 0, SCANNED, {"scan": scanned(lax.add, 0)}),
    Case(
        "products so far of 250 numbers",
        lambda x: jnp.sum(jnp.sin(jnp.cumprod(1 + 0.01 * x))),
        {"scan": lambda x: jnp.sum(jnp.sin(scanned(lax.mul, 1)(1 + 0.01 * x)))},
        lambda: (normal(6, 250),),
        (0,),
        bounds=SCANNED,
        grad_bounds=SCANNED,
    ),
    sums("sum down long columns", (4096, 1024), 0, SCANNED, {"scan": scanned(lax.add, 0)}),
    sums("sum of one axis", (1_048_576,), 0, Bounds(over_hand=None, speedup=2.0, memory_over_hand=None)),
    sums("sum of an odd axis", (1_000_003,), 0),
    sums("sum along rows", (4096, 1024), 1),
    sums("sum along short rows", (65536, 64), 1),
    sums("sum in the middle", (100, 200, 16), 1),
    sums("sum backward", (1_048_576,), 0, reverse=True),
    sums("sum at the border", (32, 32), 0),
    Case(
        "gradient of a sum along rows",
        lambda x: jnp.cumsum(x, 1),
        {"as it stands": lambda x: jnp.cumsum(x, 1)},
        lambda: (normal(1, 4096, 256),),
        (0,),
        bounds=FASTER,
        grad_bounds=FASTER,
    ),
    Case(
        "discounted log survival",
        lambda x: jnp.exp(jnp.cumsum(jnp.log1p(-0.5 * jnp.exp(-x * x)), 1)) * x,
        {"as it stands": lambda x: jnp.exp(jnp.cumsum(jnp.log1p(-0.5 * jnp.exp(-x * x)), 1)) * x},
        lambda: (normal(2, 4096, 64),),
        (0,),
        bounds=FASTER,
        grad_bounds=FASTER,
    ),
    Case(
        "largest so far",
        along(lax.cummax, 0),
        {"scan": scanned(lax.max, -jnp.inf)},
        lambda: (normal(3, 2048, 1024),),
        bounds=Bounds(over_hand=1.10, speedup=2.0),
    ),
    Case(
        "log of a sum of exponentials",
        along(lax.cumlogsumexp, 0),
        {"scan": scanned(jnp.logaddexp, -jnp.inf)},
        lambda: (normal(4, 512, 256),),
        (0,),
        bounds=Bounds(over_hand=1.10, speedup=5.0),
        grad_bounds=FASTER,
    ),
    Case(
        "end of a sum",
        lambda x: jnp.cumsum(x, 1)[:, -1],
        {"sum": lambda x: jnp.sum(x, 1)},
        lambda: (normal(5, 1000, 1000),),
        (0,),
        bounds=Bounds(over_hand=1.10, speedup=5.0),
        grad_bounds=Bounds(over_hand=1.10, speedup=2.0),
    ),
    Case(
        "end of a sum down columns",
        lambda x: jnp.cumsum(x, 0)[-1],
        {"sum": lambda x: jnp.sum(x, 0)},
        lambda: (normal(5, 300, 700),),
        (0,),
        bounds=Bounds(over_hand=1.10, speedup=3.0),
        grad_bounds=Bounds(over_hand=1.10, speedup=3.0),
    ),
    Case(
        "end of a maximum",
        lambda x: lax.cummax(x, 1)[:, -1],
        {"max, and nan": lambda x: jnp.where(jnp.isnan(x).any(1), jnp.nan, x.max(1))},
        lambda: (normal(5, 500, 1000),),
        bounds=Bounds(over_hand=1.10, speedup=5.0, memory_over_hand=None),
    ),
    Case(
        "sum along the rows of a small matrix",
        lambda x: jnp.cumsum(x, 1),
        {"scan over columns": lambda x: scanned(lax.add, 0)(x.T).T},
        lambda: (normal(7, 90, 320),),
        (0,),
        bounds=Bounds(over_hand=1.10, speedup=2.0, memory_over_hand=None),
        grad_bounds=Bounds(over_hand=1.10, speedup=1.5, memory_over_hand=None),
    ),
    Case(
        "largest so far along the rows of a small matrix",
        lambda x: lax.cummax(x, 1),
        {"scan over columns": lambda x: scanned(lax.max, -jnp.inf)(x.T).T},
        lambda: (normal(8, 70, 260),),
        bounds=Bounds(over_hand=1.10, speedup=2.0, memory_over_hand=None),
    ),
)
