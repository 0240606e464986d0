"""Places of one entry in each row of a value, and what is put there, picked there, or summed up of it."""

from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom

from ..record import record


@record
class EntryPlaces:
    """One entry in each row; rows lie along dimension `dim` of values of that shape.

    Attributes:
        index: the place of each entry, in the shape of the entries; those out of bounds are in no row.
        mode: of the scatter and of gathers.
    """

    shape: tuple[int, ...]
    dim: int
    index: Atom
    mode: Any

    @property
    def entries(self) -> tuple[int, ...]:
        """The shape of the entries."""
        return tuple(1 if d == self.dim else n for d, n in enumerate(self.shape))

    @property
    def rows(self) -> tuple[int, ...]:
        """The dimensions that count rows."""
        return tuple(d for d in range(len(self.shape)) if d != self.dim)

    def added(self, into: Any, index: Any, entry: Any) -> Any:
        """The entries added to a value."""
        numbers = lax.ScatterDimensionNumbers((), (self.dim,), (self.dim,), self.rows, self.rows)
        index = lax.reshape(index, (*self.entries, 1))
        return lax.scatter_add(into, index, entry, numbers, mode=self.mode)

    def picked(self, x: Any, index: Any) -> Any:
        """What stands in `x` at the places; of an index out of bounds, the nearest."""
        numbers = lax.GatherDimensionNumbers((), (self.dim,), (self.dim,), self.rows, self.rows)
        index = lax.reshape(index, (*self.entries, 1))
        return lax.gather(x, index, numbers, (1,) * x.ndim, mode=lax.GatherScatterMode.CLIP)

    def summed(self, index: Any, entry: Any) -> Any:
        """The sum of each row of the entries: themselves, where their index is in bounds."""
        if self.mode == lax.GatherScatterMode.PROMISE_IN_BOUNDS:
            return lax.squeeze(entry, [self.dim])
        size = np.asarray(self.shape[self.dim], index.dtype)
        there = lax.bitwise_and(lax.ge(index, np.zeros_like(size)), lax.lt(index, size))
        return lax.squeeze(lax.select(there, entry, lax.full_like(entry, 0)), [self.dim])
