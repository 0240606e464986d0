"""What the stacked partial results of all steps come to, in fewer operations than combining them one by one.

Steps that do not count hold the identity of their monoid: `n = 0`, a maximum of `-inf`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from .centered import SOFTMAX
from .moments import MOMENTS


def _sum(rows: Any) -> Any:
    """The sum of all rows."""
    return lax.reduce_sum(rows, [0])


def _moments(n: Any, base: Any, rest: Any, squares: Any) -> list[Any]:
    """`(n, base, mean - base, squares around the mean)` of all steps, from theirs.

    The base is the mean, rounded, and what is left of it comes from the distances to it: two passes over few numbers
    keep more digits than any order of merging.
    """
    weights = lax.broadcast_in_dim(n, base.shape, (0,))
    total = _sum(n)
    share = lax.broadcast(lax.max(total, np.asarray(1, total.dtype)), base.shape[1:])

    def around(center: Any, values: Any) -> Any:
        return values - lax.broadcast_in_dim(center, values.shape, tuple(range(1, values.ndim)))

    middle = _sum(weights * base) / share
    off = around(middle, base) + rest
    mean = _sum(weights * off) / share
    off = around(mean, off)
    return [total, middle, mean, _sum(squares + weights * off * off)]


def _exponentials(m: Any, s: Any) -> list[Any]:
    """`(max, sum(exp(y - max)))` of all steps, from theirs; as in `logsumexp`, an infinite maximum is no center."""
    most = lax.reduce_max(m, [0])
    center = lax.select(lax.is_finite(most), most, lax.full_like(most, 0))
    center = lax.broadcast_in_dim(center, m.shape, tuple(range(1, m.ndim)))
    return [most, _sum(s * lax.exp(m - center))]


# By the name of the monoid: a function of the stacked parts.
OF_ALL: dict[str, Callable[..., list[Any]]] = {
    "add": lambda rows: [_sum(rows)],
    MOMENTS: _moments,
    SOFTMAX: _exponentials,
}
