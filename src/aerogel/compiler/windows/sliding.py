"""Weighted sums over sliding windows of an array, in fewer operations than one for each place.

Those of B neighbours are the product of w + B - 1 numbers with a matrix that holds the weights B times, each row
shifted by one: twice the multiplications, but in a product of matrices (0.5 of the time of 16 slices, 0.15 of that of
64).
"""

from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

FEWEST_ROWS, MOST_ROWS = 16, 64  # neighbours that are summed at once
# So many products, of so many weights, are one loop over slices: 10 us where the product of matrices, with all that
# makes its operands, takes 30 (jaxlib 0.10.2, Zen 4; 16 weights at 1,000 places, 32 at 2,000).
SMALL, MOST_SLICES = 1 << 16, 32
# From so many products on the product of matrices is faster than one with all windows, gathered row by row.
LARGE = 1 << 17


def _rows_at_once(count: int) -> int:
    size = FEWEST_ROWS
    while size < min(count - 1, MOST_ROWS):
        size *= 2
    return size


def _in_rows(x: Any, rows: int, size: int) -> Any:
    """The last dimension as rows of `size`, with zeros behind it."""
    around = [(0, 0, 0)] * (x.ndim - 1) + [(0, rows * size - x.shape[-1], 0)]
    return lax.reshape(lax.pad(x, lax.full((), 0, x.dtype), around), (*x.shape[:-1], rows, size))


def is_worth_it(products: int, count: int) -> bool:
    """Whether `weighted` takes less than to gather windows and multiply them: so many products of `count` weights."""
    return products >= LARGE or (products <= SMALL and count <= MOST_SLICES)


def weighted(x: Any, weights: Any, precision: Any = None) -> Any:
    """At each place along the last dimension the sum of the numbers from there on times the weights."""
    count = weights.shape[0]
    size = _rows_at_once(count)
    positions = x.shape[-1] - count + 1
    if count <= MOST_SLICES and x.size // x.shape[-1] * positions * count <= SMALL:
        parts = (lax.slice_in_dim(x, k, k + positions, axis=x.ndim - 1) for k in range(count))
        return reduce(lax.add, (part * weights[k] for k, part in enumerate(parts)))
    rows, more = -(-positions // size), -(-(count - 1) // size)
    length = (more + 1) * size
    # Row b holds the weights from place b on: with one place more in each row, they all begin at the same one.
    matrix = lax.pad(weights, lax.full((), 0, x.dtype), [(0, length + 1 - count, 0)])
    matrix = lax.reshape(lax.broadcast_in_dim(matrix, (size, length + 1), (1,)), (size * (length + 1),))
    matrix = lax.reshape(lax.slice_in_dim(matrix, 0, size * length), (size, length))
    x = _in_rows(x, rows + more, size)
    total = None
    for k in range(more + 1):
        part = lax.slice_in_dim(x, k, k + rows, axis=x.ndim - 2)
        own = lax.slice_in_dim(matrix, k * size, (k + 1) * size, axis=1)
        product = lax.dot_general(part, own, (((x.ndim - 1,), (1,)), ((), ())), precision=precision)
        total = product if total is None else total + product
    assert total is not None, "there is one row at least"
    flat = lax.reshape(total, (*total.shape[:-2], rows * size))
    return lax.slice_in_dim(flat, 0, positions, axis=flat.ndim - 1)


def weights_of(x: Any, y: Any, precision: Any = None) -> Any:
    """For each place of the windows of `x` the sum of `y` times the numbers there: the weights' gradient."""
    count = x.shape[-1] - y.shape[-1] + 1
    if y.size * count <= SMALL:
        # Copied side by side (`count` long rows) they are one product: 14 us for 1,000 places of 8 weights, and not 33.
        last = x.ndim - 1
        numbers = lax.GatherDimensionNumbers(tuple(range(1, x.ndim + 1)), (), (last,))
        places = lax.expand_dims(lax.iota(np.int32, count), [1])
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
        rows = lax.gather(x, places, numbers, (*x.shape[:-1], y.shape[-1]), mode=mode)
        over = tuple(range(y.ndim))
        return lax.dot_general(rows, y, ((tuple(d + 1 for d in over), over), ((), ())), precision=precision)
    size = _rows_at_once(count)
    rows, more = -(-y.shape[-1] // size), -(-(count - 1) // size)
    length = (more + 1) * size
    y, x = _in_rows(y, rows, size), _in_rows(x, rows + more, size)
    over = tuple(range(x.ndim - 1))
    parts = [lax.slice_in_dim(x, k, k + rows, axis=x.ndim - 2) for k in range(more + 1)]
    products = [lax.dot_general(y, part, ((over, over), ((), ())), precision=precision) for part in parts]
    flat = lax.reshape(lax.concatenate(products, 1), (size * length,))
    flat = lax.pad(flat, lax.full((), 0, x.dtype), [(0, size, 0)])
    sums = lax.slice_in_dim(lax.reshape(flat, (size, length + 1)), 0, count, axis=1)
    return jnp.sum(sums, 0)
