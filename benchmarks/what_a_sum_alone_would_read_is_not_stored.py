"""Claim: what a sum alone would read from memory is not stored, also where its formula compares and selects.

XLA's library for sums takes arithmetic along, and no comparisons: a Huber loss, a masked error, a count. By hand such a
sum is a loop over blocks that stay in a cache.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BLOCK = 1 << 14
BOUNDS = Bounds(over_hand=1.15, speedup=1.15)
LESS = Bounds(over_hand=1.15, speedup=1.03)  # of little, or beside a gradient that stays as it is
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)


def arrays(size, count=2):
    return lambda: tuple(normal(k, size) for k in range(count))


def huber(x):
    return jnp.where(jnp.abs(x) <= 1, 0.5 * x * x, jnp.abs(x) - 0.5)


def pinball(x, y):
    d = x - y
    return jnp.where(d > 0, 0.9 * d, -0.1 * d)


def masked(x, y, m):
    return jnp.where(m > 0, (x - y) ** 2, 0)


def sums(*fs):
    """One sum for each function of all arrays, as one writes it."""
    return lambda *xs: [jnp.sum(f(*xs)) for f in fs]


def sums_by_hand(*fs):
    """The same in blocks."""

    def run(*xs):
        def step(totals, blocks):
            return [total + jnp.sum(f(*blocks)) for total, f in zip(totals, fs, strict=True)], None

        blocks = [x.reshape(-1, BLOCK) for x in xs]
        return lax.scan(step, [jnp.zeros((), xs[0].dtype) for _ in fs], blocks)[0]

    return run


def both(f, value):
    """Value and gradient of a sum, with a value made otherwise."""
    return lambda *xs: (value(*xs), jax.grad(lambda *xs: f(*xs)[0])(*xs))


def case(name, fs, args, **options):
    return Case(name, sums(*fs), {"in blocks": sums_by_hand(*fs)}, args, **{"bounds": BOUNDS, **options})


def with_gradient(name, f, args):
    plain = sums(f)
    return Case(name, both(plain, plain), {"in blocks": both(plain, sums_by_hand(f))}, args, bounds=LESS)


def left(name, f, args):
    """A program in which nothing is stored for a sum alone, or it is dear to make."""
    return Case(name, f, {"as it stands": f}, args, bounds=NEVER_SLOWER)


CASES = (
    case("a Huber loss, 4 MB", (huber,), arrays(1 << 20, 1), bounds=LESS),
    case("a Huber loss, 40 MB", (huber,), arrays(640 * BLOCK, 1)),
    case("a count, 4 MB", (lambda x: (x > 0).astype(x.dtype),), arrays(1 << 20, 1), bounds=LESS),
    case("a masked error and its count, 8 MB", (masked, lambda x, y, m: (m > 0) * 1.0), arrays(1 << 21, 3)),
    case("a quantile loss, 40 MB", (pinball,), arrays(640 * BLOCK)),
    with_gradient("a Huber loss and its gradient, 16 MB", huber, arrays(1 << 22, 1)),
    with_gradient("a Huber loss and its gradient, 40 MB", huber, arrays(640 * BLOCK, 1)),
    with_gradient("a masked error and its gradient, 16 MB", masked, arrays(1 << 22, 3)),
    left("a Huber loss, 0.4 MB", lambda x: huber(x).sum(), arrays(100_000, 1)),
    left("a loss with exponentials, 8 MB", lambda x, y: jnp.logaddexp(0.0, -x * y).sum(), arrays(1 << 21)),
    left("squares, 40 MB", lambda x, y: ((x - y) ** 2).sum(), arrays(640 * BLOCK)),
    left("a result that is summed up, 16 MB", lambda x: (huber(x), huber(x).sum()), arrays(1 << 22, 1)),
)
