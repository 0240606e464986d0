"""Claim: what sums up a sort costs a sum, and one entry of it, or the mean of a tail, a fraction of a sort.

The expert forms are sums, extrema and `top_k`, which need not care for nan (on CPU `jnp.max` drops it) or for ties. Of
a median, of other quantiles and of trimmed means no form by hand is faster than the sort that is written here by bits.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

N = 300_000
SUMS = Bounds(over_hand=1.25, speedup=10.0)
# A bound of nan and the place of each extremum take passes that `max` does not.
ENDS = Bounds(over_hand=None, speedup=10.0, memory_over_hand=None)
TAILS = Bounds(over_hand=1.10, speedup=5.0, memory_over_hand=None)
RANKS = Bounds(over_hand=1.0, speedup=4.0, memory_over_hand=None)
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)


def by_bits(x):
    """Sorted as integers, and back: for numbers without nan and -0."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    ordered = lax.sort(jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits), is_stable=False)
    return lax.bitcast_convert_type(jnp.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered), jnp.float32)


def tail(x):
    """The mean of the worst 5 %."""
    return jnp.sort(x)[: x.size // 20].mean()


def trimmed(x):
    """The mean without a tenth at each end."""
    return jnp.sort(x)[x.size // 10 : x.size - x.size // 10].mean()


def both_ends(x):
    """The range."""
    s = jnp.sort(x)
    return s[-1] - s[0]


def median_by_bits(x):
    """Of the sort by bits."""
    s = by_bits(x)
    return 0.5 * (s[(N - 1) // 2] + s[N // 2])


def top_mean(x):
    """By `top_k`."""
    return lax.top_k(x, 10)[0].mean()


def numbers():
    """Without ties."""
    return (normal(0, N),)


CASES = (
    Case("mean", lambda x: jnp.sort(x).mean(), {"mean": jnp.mean}, numbers, (0,), bounds=SUMS, grad_bounds=SUMS),
    Case(
        "sum by argsort",
        lambda x: x[jnp.argsort(x)].sum(),
        {"sum": jnp.sum},
        numbers,
        (0,),
        bounds=SUMS,
        grad_bounds=SUMS,
    ),
    Case(
        "range", both_ends, {"extrema": lambda x: jnp.max(x) - jnp.min(x)}, numbers, (0,), bounds=ENDS, grad_bounds=ENDS
    ),
    Case(
        "mean of the largest ten",
        lambda x: jnp.sort(x)[-10:].mean(),
        {"top_k": top_mean},
        numbers,
        (0,),
        bounds=ENDS,
        grad_bounds=ENDS,
    ),
    Case(
        "mean of the worst 5 %",
        tail,
        {"top_k": lambda x: -lax.top_k(-x, x.size // 20)[0].mean()},
        numbers,
        (0,),
        bounds=TAILS,
        grad_bounds=TAILS,
    ),
    Case("trimmed mean", trimmed, {"as it stands": trimmed}, numbers, (0,), bounds=RANKS, grad_bounds=RANKS),
    Case("median", jnp.median, {"sort by bits": median_by_bits}, numbers, bounds=RANKS),
    Case("gradient of a median", jax.grad(jnp.median), {"as it stands": jax.grad(jnp.median)}, numbers, bounds=RANKS),
    Case(
        "medians of columns",
        lambda x: jnp.median(x, 0),
        {"as it stands": lambda x: jnp.median(x, 0)},
        lambda: (normal(1, 1000, 300),),
        (0,),
        bounds=RANKS,
        grad_bounds=RANKS,
    ),
    Case(
        "short medians",
        lambda x: jnp.median(x, 1),
        {"as it stands": lambda x: jnp.median(x, 1)},
        lambda: (normal(2, 256, 16),),
        (0,),
        bounds=NEVER_SLOWER,
        grad_bounds=NEVER_SLOWER,
    ),
)
