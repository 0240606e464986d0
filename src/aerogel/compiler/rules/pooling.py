"""The gradient of max-pooling in pairs: XLA's CPU backend goes from window to window; slices are faster.

Of each window the first of the largest entries gets the cotangent, in the sense of `select_and_scatter`: an entry is
left for the next one where it is not at least as large, which is how nan is passed on too. Which entry that is takes
one comparison of strided slices for each further place of the window. The cotangents are then woven together.

Where windows overlap or are larger, XLA fuses those comparisons into each of the sums again, and is up to twice as slow
as it was: those are left alone.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .on import on

MOST_PLACES = 4
SHORTEST_RUN = 16  # of entries to copy; below, weaving four parts is the slower form, and weaving two is wherever it is

Sizes = Sequence[int]
Place = tuple[int, ...]


@on(
    lax.select_and_scatter_add_p,
    stage="final",
    platforms=("cpu",),
    exactness="bitwise",
    reason="slices are compared many entries at a time, and `select_and_scatter` goes from window to window",
)
def max_pool_gradient(
    source: Any, operand: Any, *, select_prim: Any, window_dimensions: Sizes, window_strides: Sizes, padding: Any
) -> Any:
    """The cotangent of a pool's operand."""
    sizes, strides = tuple(window_dimensions), tuple(window_strides)
    if select_prim is not lax.ge_p:
        return f"it selects by `{select_prim.name}`"
    if not jnp.issubdtype(operand.dtype, jnp.floating):
        return f"it is of {operand.dtype}"
    if max(sizes, default=1) > 2 or not 1 < math.prod(sizes) <= MOST_PLACES:
        return "its windows are no pairs, nor pairs of pairs"
    if any(size > stride for size, stride in zip(sizes, strides, strict=True)):
        return "its windows overlap"
    if any(low for low, _ in padding):
        return "its first windows begin in the padding"
    if not source.size:
        return "it has no entries"
    zero = lax.full_like(source, 0)
    places = list(itertools.product(*map(range, sizes)))
    spreads = sizes[-1] == 1 and (len(places) == 2 or operand.shape[-1] < SHORTEST_RUN)
    # XLA adds to zero, which makes 0 of -0: a sum does so itself.
    source = source if spreads else lax.select(lax.eq(source, zero), zero, source)
    first = _first_of_the_largest(operand, source.shape, places, strides)
    parts = {p: lax.select(lax.eq(first, lax.full_like(first, k)), source, zero) for k, p in enumerate(places)}
    if spreads:
        return _spread(parts, operand.shape, strides)
    return _woven({**dict.fromkeys(itertools.product(*map(range, strides)), zero), **parts}, operand.shape)


def _first_of_the_largest(operand: Any, counts: Sizes, places: list[Place], strides: Sizes) -> Any:
    """For each window the number of the place of its first largest entry; JAX fills up with -inf, which counts."""
    ends = [n * s for n, s in zip(counts, strides, strict=True)]
    config = [(0, end - size, 0) for end, size in zip(ends, operand.shape, strict=True)]
    whole = lax.pad(operand, np.array(-np.inf, operand.dtype), config)
    best = lax.slice(whole, places[0], ends, strides)
    first = lax.full(best.shape, 0, np.int32)
    for k, place in enumerate(places[1:], 1):
        entry = lax.slice(whole, place, ends, strides)
        taken = ~lax.ge(best, entry)
        best, first = lax.select(taken, entry, best), lax.select(taken, lax.full_like(first, k), first)
    return first


def _woven(parts: dict[Place, Any], shape: Sizes) -> Any:
    """The parts side by side, cut or filled with zero to a shape: axis by axis from the last, each a concatenation."""
    for axis in reversed(range(len(shape))):
        rows: dict[Place, list[Any]] = {}
        for place, part in parts.items():
            rows.setdefault(place[:axis], []).append(part)
        parts = {place: _joined(row, axis) for place, row in rows.items()}
    (whole,) = parts.values()
    config = [(0, n - m, 0) for n, m in zip(shape, whole.shape, strict=True)]
    return lax.pad(whole, np.array(0, whole.dtype), config)


def _spread(parts: dict[Place, Any], shape: Sizes, strides: Sizes) -> Any:
    """The same, as a sum of parts with zeros in between."""
    spread = []
    for place, part in parts.items():
        ends = [p + (n - 1) * s + 1 for p, n, s in zip(place, part.shape, strides, strict=True)]
        config = [(p, size - end, s - 1) for p, size, end, s in zip(place, shape, ends, strides, strict=True)]
        spread.append(lax.pad(part, np.array(0, part.dtype), config))
    return sum(spread[1:], spread[0])


def _joined(row: list[Any], axis: int) -> Any:
    if len(row) == 1:
        return row[0]
    shape = row[0].shape
    return lax.reshape(jnp.stack(row, axis + 1), (*shape[:axis], shape[axis] * len(row), *shape[axis + 1 :]))
