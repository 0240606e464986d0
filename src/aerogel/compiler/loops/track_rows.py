"""The rows of a track in a loop under construction: carries, an input, an output, and the buffer after the loop."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Var

from ..known.facts import Affine
from ..loop import LoopBuilder
from ..program import substitute
from .tracks import How, Touch, Track


class TrackRows:
    """What stands for one carried buffer in a new loop.

    Args:
        new: the loop.
        track: how the steps of the old one touch the buffer.
        init: the buffer before the loop.
    """

    def __init__(self, new: LoopBuilder, track: Track, init: Atom):
        self.new, self.track, self.init = new, track, init
        self.shape = tuple(n for d, n in enumerate(track.buffer.aval.shape) if d != track.dim)
        first = new.length - 1 if new.reverse else 0
        start: dict[int, Atom] = {}
        self.carries: dict[int, tuple[Callable[[Atom], None], Var]] = {}
        for row in track.carried:
            place = track.at(row)
            at = place.scale * first + place.offset
            (entry,) = new.before.call(lambda b, at=at: lax.index_in_dim(b, at, track.dim, keepdims=False), init)
            start[row], set_next, final = new.carry(entry)
            self.carries[row] = set_next, final
        if track.enters(track.rows[-1]):
            start[track.rows[-1]] = new.x(read_in_turn(new, init, track.at(track.rows[-1]), track.dim))
        self.rows: dict[Var, dict[int, Atom]] = {track.buffer: start}

    def touch(self, touch: Touch, env: dict[Var, Atom]) -> None:
        """One equation of the body, on rows."""
        rows, (out,) = self.rows[touch.buffer], touch.eqn.outvars
        if touch.how is How.READ:
            shape = out.aval.shape
            (env[out],) = self.new.body.call(lambda v: lax.reshape(v, shape), rows[touch.row])
            return
        assert touch.value is not None
        (value,) = self.new.body.call(self._entry, substitute(touch.value, env))
        if touch.how is How.ADD and not self.track.only_adds:
            (value,) = self.new.body.call(lax.add, rows[touch.row], value)
        self.rows[out] = rows | {touch.row: value}

    def _entry(self, value: Any) -> Any:
        return lax.reshape(_jax.convert_element_type(value, value.dtype, False), self.shape)

    def finish(self, last: Var) -> Atom | None:
        """Ends the step, whose buffer is then `last`; the buffer after the loop, if anyone reads it."""
        rows, track = self.rows[last], self.track
        for row, (set_next, _) in self.carries.items():
            set_next(rows[row + 1])
        if not track.is_read:
            return None
        passed = self.new.y(rows[track.written[0]])
        left = [self.carries[row - 1][1] for row in track.left]
        (whole,) = self.new.after.call(self._whole, self.init, passed, *left)
        return whole

    def _whole(self, init: Any, passed: Any, *left: Any) -> Any:
        """The buffer from the rows that the steps have left behind, and those that the last one left."""
        track, dim, length = self.track, self.track.dim, self.new.length
        lowest, _ = track.at(track.written[0]).bounds(length)
        part = stacked_along(passed, dim)
        if track.place.scale < 0:
            part = lax.rev(part, [dim])
        parts = [part, *(lax.expand_dims(row, [dim]) for row in left)]
        if track.ahead < 0:
            parts, lowest = parts[::-1], lowest - len(left)
        if track.only_adds:
            parts = [_cut(init, lowest, lowest + length, dim) + part]
        end = lowest + length + len(left)
        if track.only_adds and end - lowest < init.shape[dim]:
            return lax.dynamic_update_slice_in_dim(init, parts[0], np.int32(lowest), dim)
        # parts side by side: what reads them need not know of the whole
        ends = _cut(init, 0, lowest, dim), _cut(init, end, init.shape[dim], dim)
        every = [x for x in (ends[0], *parts, ends[1]) if x.shape[dim]]
        return lax.concatenate(every, dim) if len(every) > 1 else every[0]


def _cut(x: Any, start: int, end: int, dim: int) -> Any:
    return x if (start, end) == (0, x.shape[dim]) else lax.slice_in_dim(x, start, end, axis=dim)


def read_in_turn(new: LoopBuilder, source: Atom, place: Affine, dim: int) -> Var:
    """The entries of `source` along `dim` that are at `place` in each step, stacked."""

    def rows(x: Any) -> Any:
        lowest, highest = place.bounds(new.length)
        part = _cut(x, lowest, highest + 1, dim)
        if place.scale < 0:
            part = lax.rev(part, [dim])
        return lax.transpose(part, (dim, *(d for d in range(part.ndim) if d != dim))) if dim else part

    (found,) = new.before.call(rows, source)
    assert isinstance(found, Var)
    return found


def stacked_along(rows: Any, dim: int) -> Any:
    """Rows that are stacked in front, with that dimension at `dim`."""
    return lax.transpose(rows, (*range(1, dim + 1), 0, *range(dim + 1, rows.ndim))) if dim else rows
