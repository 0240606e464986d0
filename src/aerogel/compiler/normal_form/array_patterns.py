"""What arrays that a program holds look like: one number, a counter, a diagonal, a triangle, one-hot rows.

`np.eye(n)`, `np.arange(n)` or `np.tril(np.ones((t, t)))` outside of a function is an array like any other. Here its
pattern is found, and a function that makes it of counters, as `jnp.eye` and `jnp.tril` inside of the function do.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..record import record

# Below, nothing is won; above, a look at all entries takes longer than a trace should.
FEWEST = 64
FEWEST_COUNTED = 8  # ten classes are compared with many labels
MOST = 1 << 24
BFLOAT16 = np.dtype(jnp.bfloat16)  # whose kind says nothing


@record
class Pattern:
    """How an array is made.

    Attributes:
        make: a function of `parts` that makes it, bit by bit the same.
        parts: arrays that are smaller by a dimension; no, or one.
        is_filled: all its entries are one number.
    """

    make: Callable[..., Any]
    parts: tuple[np.ndarray, ...] = ()
    is_filled: bool = False


def pattern_of(array: np.ndarray) -> Pattern | None:
    """The pattern of an array; None if it has none, is small or very large."""
    if not FEWEST_COUNTED <= array.size <= MOST or (array.dtype.kind not in "biuf" and array.dtype != BFLOAT16):
        return None
    if array.dtype.kind in "iu" and array.size == max(array.shape):
        found = _counted(array)
        if found is not None:
            return found
    if array.size < FEWEST:
        return None
    first = array.reshape(-1)[:1]
    if _is_filled(array, first):
        return _filled(array.shape, first[0])
    long = [d for d, n in enumerate(array.shape) if n > 1]
    if len(long) != 2:
        return None
    rows = array.reshape([array.shape[d] for d in long])
    found = _triangle(rows) or _diagonal(rows) or _one_hot(rows)
    return found if found is None or array.ndim == 2 else _reshaped(found, array.shape)


def _is_filled(array: np.ndarray, first: np.ndarray) -> bool:
    return _are(array[..., :2], first) and _are(array, first)


def _are(array: np.ndarray, value: Any) -> bool:
    """Whether all entries are one number; of a float zero its sign counts."""
    same = bool((array == value).all())
    return same and (array.dtype.kind in "biu" or not bool((np.signbit(array) != np.signbit(value)).any()))


def _filled(shape: tuple[int, ...], value: np.generic) -> Pattern:
    one, dtype = value.item(), value.dtype
    return Pattern(lambda: lax.full(shape, one, dtype), is_filled=True)


def _counted(array: np.ndarray) -> Pattern | None:
    """Integers in steps of one size, along the one dimension that is longer than 1."""
    dtype, shape = array.dtype, array.shape
    if dtype.itemsize == 8 and dtype.kind == "u":
        return None
    line = array.reshape(-1).astype(np.int64)
    first, step = int(line[0]), int(line[1] - line[0])
    is_even = step and not bool((np.diff(line) != step).any())
    # A step down is none of unsigned integers, and no product of a counter may leave the type.
    if not is_even or not np.iinfo(dtype).min <= step * (line.size - 1) <= np.iinfo(dtype).max:
        return None

    def make() -> Any:
        counter = lax.broadcasted_iota(dtype, shape, int(np.argmax(shape)))
        counter = counter if step == 1 else lax.mul(counter, np.asarray(step, dtype))
        return counter if first == 0 else lax.add(counter, np.asarray(first, dtype))

    return Pattern(make)


def _reshaped(pattern: Pattern, shape: tuple[int, ...]) -> Pattern:
    make = pattern.make
    return Pattern(lambda *parts: lax.reshape(make(*parts), shape), pattern.parts)


def _triangle(rows: np.ndarray) -> Pattern | None:
    """One number where the row's place and `by` are at least the column's, and another one above."""
    n, m = rows.shape
    low, high = rows[-1, 0], rows[0, -1]
    if _are(low, high):
        return None
    before = int((rows[0] == low).sum())
    by = before - 1 if before else -int((rows[:, 0] != low).sum())
    seen = max(by + 1, 0)
    if not (_are(rows[0, :seen], low) and _are(rows[0, seen:], high) and _are(rows[-1, : max(n + by, 0)], low)):
        return None  # most arrays end here
    below = np.tri(n, m, by, bool)
    if not (_are(rows[below], low) and _are(rows[~below], high)):
        return None
    values = low.item(), high.item()
    dtype = rows.dtype
    return Pattern(lambda: _by_mask(_reach(n, m, by), values, dtype))


def _reach(n: int, m: int, by: int) -> Any:
    """Where the row's place and `by` are at least the column's."""
    place, column = (lax.broadcasted_iota(np.int32, (n, m), d) for d in (0, 1))
    return lax.ge(lax.add(place, np.int32(by)) if by else place, column)


def _by_mask(mask: Any, values: tuple[Any, Any], dtype: Any) -> Any:
    """`values[0]` where a mask holds, `values[1]` elsewhere."""
    positive = not any(map(np.signbit, values))
    if values == (1, 0) and positive:
        return lax.convert_element_type(mask, dtype)
    if values == (0, 1) and positive:
        return lax.convert_element_type(lax.bitwise_not(mask), dtype)
    return lax.select(mask, *(lax.full(mask.shape, value, dtype) for value in values))


def _diagonal(rows: np.ndarray) -> Pattern | None:
    """A square with one number beside its diagonal, and another one, or zeros around any, on it."""
    n, m = rows.shape
    rest = rows[0, 1:2]
    if n != m or not _are(rows[0, 1:], rest):
        return None
    off = ~np.eye(n, dtype=bool)
    if not _are(rows[off], rest):
        return None
    entries, dtype, other = np.ascontiguousarray(rows.diagonal()), rows.dtype, rest[0].item()
    if _are(entries, entries[0]):
        values = entries[0].item(), other
        return Pattern(lambda: _by_mask(_equal(n), values, dtype))
    if other or np.signbit(other):
        return None
    return Pattern(
        lambda x: lax.select(_equal(n), lax.broadcast_in_dim(x, (n, n), (1,)), lax.full((n, n), 0, dtype)), (entries,)
    )


def _equal(n: int) -> Any:
    return lax.eq(*(lax.broadcasted_iota(np.int32, (n, n), d) for d in (0, 1)))


def _one_hot(rows: np.ndarray) -> Pattern | None:
    """Rows of zeros and one 1."""
    n, m = rows.shape
    zeros, ones = (np.zeros((), rows.dtype), np.ones((), rows.dtype))
    if int((rows[0] == ones).sum()) != 1 or not bool(((rows == zeros) | (rows == ones)).all()):
        return None
    if bool((rows.astype(np.float32).sum(1) != 1).any()) or (
        rows.dtype.kind not in "biu" and bool(np.signbit(rows).any())
    ):
        return None
    labels, dtype = rows.argmax(1).astype(np.int32), rows.dtype

    def make(labels: Any) -> Any:
        index = lax.broadcast_in_dim(labels, (n, m), (0,))
        return lax.convert_element_type(lax.eq(index, lax.broadcasted_iota(np.int32, (n, m), 1)), dtype)

    return Pattern(make, (labels,))
