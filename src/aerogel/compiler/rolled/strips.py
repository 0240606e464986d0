"""Windows of an array at even distances: as one array of windows, and added up where they lie."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..record import record


def strip_of(first: Sequence[int], move: Sequence[int], sizes: Sequence[int], count: int) -> "Strip | None":
    """The windows of which each is moved by `move` from the one before; None if they move along several dimensions."""
    moving = [d for d, n in enumerate(move) if n]
    if len(moving) != 1:
        return None
    start = tuple(a + (count - 1) * min(by, 0) for a, by in zip(first, move, strict=True))
    return Strip(count, start, tuple(sizes), moving[0], abs(move[moving[0]]))


@record
class Strip:
    """`count` windows of `sizes`, the first at `start`, each `move` > 0 further along `dim` than the one before."""

    count: int
    start: tuple[int, ...]
    sizes: tuple[int, ...]
    dim: int
    move: int

    @property
    def layers(self) -> int:
        """How many windows lie over one place at most."""
        return -(-self.sizes[self.dim] // self.move)

    def of(self, x: Any) -> Any:
        """The windows of an array, on a leading axis."""
        stop = [a + n for a, n in zip(self.start, self.sizes, strict=True)]
        stop[self.dim] += (self.count - 1) * self.move
        x = lax.slice(x, self.start, stop)
        layers = [self._layer(x, k) for k in range(self.layers)]
        return jnp.moveaxis(layers[0] if len(layers) == 1 else lax.concatenate(layers, self.dim + 1), self.dim, 0)

    def _layer(self, x: Any, k: int) -> Any:
        """Entries from `k * move` on, at most `move` of them, of each window of what the windows cover."""
        d, size = self.dim, min(self.move, self.sizes[self.dim] - k * self.move)
        x = lax.slice_in_dim(x, k * self.move, (k + self.count - 1) * self.move + size, axis=d)
        x = _padded(x, d, 0, self.move - size)
        x = lax.reshape(x, (*x.shape[:d], self.count, self.move, *x.shape[d + 1 :]))
        return lax.slice_in_dim(x, 0, size, axis=d + 1)

    def added(self, windows: Any, shape: tuple[int, ...]) -> Any:
        """The sum of arrays of this shape, each of them zero but for a window."""
        d, wide = self.dim, jnp.moveaxis(windows, 0, self.dim)
        layers = []
        for k in range(self.layers):
            size = min(self.move, self.sizes[d] - k * self.move)
            one = lax.slice_in_dim(wide, k * self.move, k * self.move + size, axis=d + 1)
            one = _padded(one, d + 1, 0, self.move - size)
            one = lax.reshape(one, (*one.shape[:d], self.count * self.move, *one.shape[d + 2 :]))
            one = lax.slice_in_dim(one, 0, (self.count - 1) * self.move + size, axis=d)
            starts = [a + k * self.move * (e == d) for e, a in enumerate(self.start)]
            around = [(a, n - a - m, 0) for a, n, m in zip(starts, shape, one.shape, strict=True)]
            layers.append(lax.pad(one, lax.full((), 0, one.dtype), around) if any(map(any, around)) else one)
        return sum(layers[1:], layers[0])


def _padded(x: Any, dim: int, low: int, high: int) -> Any:
    around = [(low, high, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, lax.full((), 0, x.dtype), around) if low or high else x
