"""Gathers that read an array at evenly spaced places: `x[jnp.arange(n - w + 1)[:, None] + jnp.arange(w)]`.

Along each dimension of the result the place in the array grows by equal steps. At one index of a dimension, such as
the place in a window, what is left is a slice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel._jax import Atom, JaxprEqn

from ..axes.rebind import shape_of
from ..known.even_indices import Even, EvenIndices
from ..known.picks import columns_of
from ..record import record


@record
class Windows:
    """A value whose entry at `index` is that of an array at `start + steps[:, index]`, dimension by dimension.

    Attributes:
        array: shape of the array.
        shape: shape of the value.
        start: for each dimension of the array.
        steps: for each dimension of the array, by how much the place in it grows along each dimension of the value.
    """

    array: tuple[int, ...]
    shape: tuple[int, ...]
    start: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]

    @property
    def is_inside(self) -> bool:
        """Whether all places are in the array: none is moved, nor left out."""
        places = (Even(self.shape, at, steps) for at, steps in zip(self.start, self.steps, strict=True))
        return all(e.low >= 0 and e.high < n for e, n in zip(places, self.array, strict=True))

    @property
    def overlap(self) -> bool:
        """Whether several dimensions of the value go along one of the array."""
        return any(sum(map(bool, steps)) > 1 for steps in self.steps)

    def at(self, dim: int, index: int) -> "Windows":
        """What is left of the value at one index of a dimension, without it."""
        start = tuple(at + s[dim] * index for at, s in zip(self.start, self.steps, strict=True))
        shape = (*self.shape[:dim], *self.shape[dim + 1 :])
        return replace(self, shape=shape, start=start, steps=tuple((*s[:dim], *s[dim + 1 :]) for s in self.steps))

    def turned(self, order: Sequence[int]) -> "Windows":
        """The windows with their dimensions in another order."""
        steps = tuple(tuple(one[d] for d in order) for one in self.steps)
        return replace(self, shape=tuple(self.shape[d] for d in order), steps=steps)

    def reversed(self, dims: Iterable[int]) -> "Windows":
        """The windows with dimensions in the opposite order of their indices."""
        start = tuple(
            at + sum(s[d] * (self.shape[d] - 1) for d in dims) for at, s in zip(self.start, self.steps, strict=True)
        )
        steps = tuple(tuple(-n if d in dims else n for d, n in enumerate(s)) for s in self.steps)
        return replace(self, start=start, steps=steps)

    @property
    def is_slice(self) -> bool:
        """Whether the value is a slice, but for dimensions of length one, their order, and that of their indices."""
        moving = [d for d in self.along if d is not None]
        long = [d for d, n in enumerate(self.shape) if n > 1]
        return not self.overlap and sorted(moving) == long

    @property
    def along(self) -> list[int | None]:
        """For each dimension of the array, of which no two go along one, the dimension of the value; None if none."""
        return [next((d for d, s in enumerate(steps) if s), None) for steps in self.steps]

    @property
    def counts(self) -> list[int]:
        """How many places of each dimension of the array are read."""
        return [1 if d is None else self.shape[d] for d in self.along]

    @property
    def strides(self) -> list[int]:
        """How far they are from each other."""
        return [1 if d is None else abs(s[d]) for d, s in zip(self.along, self.steps, strict=True)]

    @property
    def backward(self) -> tuple[int, ...]:
        """The dimensions of the array in which the places fall."""
        return tuple(
            a for a, (d, s) in enumerate(zip(self.along, self.steps, strict=True)) if d is not None and s[d] < 0
        )

    @property
    def first(self) -> list[int]:
        """The lowest place of each dimension of the array that is read."""
        far = [(n - 1) * s for n, s in zip(self.counts, self.strides, strict=True)]
        return [at - far[a] if a in self.backward else at for a, at in enumerate(self.start)]

    def cut(self, x: Any) -> Any:
        """The value, which is a slice, of the array."""
        ends = [a + (n - 1) * s + 1 for a, n, s in zip(self.first, self.counts, self.strides, strict=True)]
        part = lax.slice(x, self.first, ends, self.strides)
        return self.arranged(lax.rev(part, self.backward) if self.backward else part)

    def arranged(self, part: Any) -> Any:
        """What was cut out of the array, with the dimensions of the value."""
        moving = [d for d in self.along if d is not None]
        part = lax.reshape(part, [self.shape[d] for d in moving])
        return lax.reshape(lax.transpose(part, sorted(range(len(moving)), key=moving.__getitem__)), self.shape)

    def laid(self, y: Any) -> Any:
        """A value, which is a slice, with the dimensions of the array."""
        moving = [d for d in self.along if d is not None]
        y = lax.reshape(y, [self.shape[d] for d in sorted(moving)])
        y = lax.reshape(lax.transpose(y, [sorted(moving).index(d) for d in moving]), self.counts)
        return lax.rev(y, self.backward) if self.backward else y

    def padded(self, y: Any, dims: Iterable[int]) -> Any:
        """What is `laid`, with zeros around it along dimensions of the array."""
        around = [(0, 0, 0)] * len(self.array)
        for a in dims:
            stride, start = self.strides[a], self.first[a]
            end = start + (self.counts[a] - 1) * stride + 1
            around[a] = (start, self.array[a] - end, stride - 1)
        return lax.pad(y, lax.full((), 0, y.dtype), around) if any(map(any, around)) else y


@record
class Slide:
    """Windows that move by one along one dimension of an array, either way, and hold neighbours along it.

    `line` has what they read so that all move forward, and hold their neighbours in the order of their places; `turned`
    and `back` see to the first of that, `in_order` to the second.

    Attributes:
        windows: what they are.
        axis: dimension of the value along which the places of a window lie.
        dim: dimension of the array along which the windows move.
    """

    windows: Windows
    axis: int
    dim: int

    @property
    def places(self) -> int:
        """How many places a window has."""
        return self.windows.shape[self.axis]

    @property
    def moves(self) -> int:
        """How many windows lie along the dimension."""
        return self.windows.at(self.axis, 0).counts[self.dim]

    @property
    def _is_backward(self) -> bool:
        """Whether each window lies before the one before it."""
        return self.dim in self.windows.at(self.axis, 0).backward

    @property
    def _start(self) -> int:
        """The lowest place along the dimension."""
        behind = self.places - 1 if self.windows.steps[self.dim][self.axis] < 0 else 0
        return self.windows.at(self.axis, 0).first[self.dim] - behind

    @property
    def _order(self) -> list[int]:
        """The dimensions of the value at one place of the windows, as `line` has them: that of the moves last."""
        along = self.windows.at(self.axis, 0).along
        first = [d for a, d in enumerate(along) if a != self.dim and d is not None]
        moved = along[self.dim]
        assert moved is not None, "windows move"
        return [*first, moved]

    def line(self, x: Any) -> Any:
        """What all windows read of an array, with the dimension along which they move last."""
        part = lax.slice_in_dim(x, self._start, self._start + self.moves + self.places - 1, axis=self.dim)
        return jnp.moveaxis(part, self.dim, -1)

    def in_order(self, weights: Any) -> Any:
        """Numbers for the places of a window, as `line` has these; the same of what is in that order."""
        return lax.rev(weights, (0,)) if self.windows.steps[self.dim][self.axis] < 0 else weights

    def around(self, y: Any) -> Any:
        """An array that has what `line` would read of it in its place, and zeros around."""
        first, around = self.windows.at(self.axis, 0), [(0, 0, 0)] * y.ndim
        y = jnp.moveaxis(y, -1, self.dim)
        around[self.dim] = (self._start, first.array[self.dim] - self._start - y.shape[self.dim], 0)
        return lax.pad(y, lax.full((), 0, y.dtype), around) if any(around[self.dim]) else y

    def turned(self, y: Any) -> Any:
        """A value at one place of the windows with its dimensions as `line` has them."""
        y = lax.transpose(y, self._order)
        return lax.rev(y, (y.ndim - 1,)) if self._is_backward else y

    def back(self, y: Any) -> Any:
        """The opposite of `turned`."""
        y = lax.rev(y, (y.ndim - 1,)) if self._is_backward else y
        return lax.transpose(y, sorted(range(y.ndim), key=self._order.__getitem__))


def slide_of(windows: Windows, axis: int) -> Slide | None:
    """The windows along `axis` if they slide, and read all else in full."""
    moved = [a for a, steps in enumerate(windows.steps) if steps[axis]]
    first = windows.at(axis, 0)
    if len(moved) != 1 or abs(windows.steps[moved[0]][axis]) != 1 or not first.is_slice or 1 in first.shape:
        return None
    (dim,) = moved
    if first.along[dim] is None or any(a != dim for a in first.backward):
        return None
    whole = all(
        (start, count) == (0, n)
        for a, (start, count, n) in enumerate(zip(first.first, first.counts, first.array, strict=True))
        if a != dim
    )
    return Slide(windows, axis, dim) if whole and first.strides == [1] * len(first.array) else None


def windows_of(eqn: JaxprEqn, indices: EvenIndices) -> Windows | None:
    """What a `gather` reads, or an additive scatter writes to, if that is evenly spaced and inside of the array."""
    p = eqn.params["dimension_numbers"]
    if eqn.primitive.name == "gather":
        offset, alone, starts = p.offset_dims, p.collapsed_slice_dims, p.start_index_map
        batched, value = p.start_indices_batching_dims, eqn.outvars[0]
    else:
        offset, alone, starts = p.update_window_dims, p.inserted_window_dims, p.scatter_dims_to_operand_dims
        batched, value = p.scatter_indices_batching_dims, eqn.invars[2]
    operand, index = eqn.invars[:2]
    array, shape = shape_of(operand), shape_of(value)
    if 0 in array or 0 in shape:
        return None
    looked = [d for d in range(len(shape)) if d not in offset]  # dimensions of the value that the indices have
    window = [a for a in range(len(array)) if a not in alone and a not in p.operand_batching_dims]
    steps = [[0] * len(shape) for _ in array]
    start = [0] * len(array)
    for a, d in zip(window, sorted(offset), strict=True):
        steps[a][d] = 1
    for a, k in zip(p.operand_batching_dims, batched, strict=True):
        steps[a][looked[k]] = 1
    columns = _columns(index, len(starts), indices)
    if columns is None:
        return None
    for a, column in zip(starts, columns, strict=True):
        start[a] += column.start
        for k, d in enumerate(looked):
            steps[a][d] += column.steps[k]
    whole = tuple(tuple(0 if n == 1 else s for n, s in zip(shape, one, strict=True)) for one in steps)
    found = Windows(array, shape, tuple(start), whole)
    return found if found.is_inside else None


def _columns(index: Atom, count: int, indices: EvenIndices) -> list[Even] | None:
    """The numbers for each dimension that is indexed: what lies along the last dimension of an array of indices."""
    parts = [index] if count == 1 else columns_of(indices.level, index, count)
    if parts is None:
        return None
    found = [indices.of(x) for x in parts]
    if any(e is None or not e.shape or e.shape[-1] != 1 for e in found):
        return None
    return [e for e in found if e is not None]
