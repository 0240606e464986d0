"""Means and products around them, of parts of the data: how two parts merge.

    mean' = mean + d * k / (n + k)                  for n and k values, whose means are a distance d apart
    C' = C + C_k + d d^T * n * k / (n + k)          (Chan, Golub, LeVeque 1983)

A mean is kept in two parts, a base and the distance from it: together they have more digits.
"""

from collections.abc import Callable
from typing import Any

from jax import lax

from ..axes import Monoid

MOMENTS = "moments"
# By the number of values that the factors are of: of one, or of two.
COVARIANCES = {1: "covariance", 2: "cross-covariance"}

Times = Callable[[Any, Any], Any]


def merged(name: str, times: Times) -> Monoid:
    """The monoid of `(n, base, mean - base, products)`, with a base and a mean of one value or of two.

    Args:
        name: the name in reports.
        times: what the products are of: squares (`lax.mul`), or `outer` products.
    """

    def combine(a: Any, b: Any) -> Any:
        (n, *means, products), (k, *others, more) = a, b
        total = n + k
        # 0 / 0 when both are empty; the share is then of nothing
        share = k / lax.max(total, lax.full_like(total, 1))
        bases, rests = means[::2], means[1::2]
        off = [
            (other - base) + (far - rest)
            for base, rest, other, far in zip(bases, rests, others[::2], others[1::2], strict=True)
        ]
        moved = [part for base, rest, d in zip(bases, rests, off, strict=True) for part in (base, rest + d * share)]
        return total, *moved, products + more + times(off[0], off[-1]) * (n * share)

    return Monoid(name, combine, lambda avals: tuple(lax.full(a.shape, 0, a.dtype) for a in avals))


def outer(a: Any, b: Any) -> Any:
    """`a[i] * b[j]`, all dimensions of `a` before those of `b`."""
    shape = (*a.shape, *b.shape)
    a_dims, b_dims = range(a.ndim), range(a.ndim, a.ndim + b.ndim)
    return lax.broadcast_in_dim(a, shape, a_dims) * lax.broadcast_in_dim(b, shape, b_dims)
