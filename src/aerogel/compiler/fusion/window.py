"""The steps of a loop that something works on, and where step `t` stands among them."""

from typing import Any

import numpy as np
from jax import lax

from ..record import record


@record
class Window:
    """The steps `start, start + stride, ...` (`count` of them) of a loop: what a slice over time keeps.

    The stride is negative where the values stand in the order of falling steps (`ys[::-1]`).
    """

    start: int
    stride: int
    count: int

    def narrowed(self, start: int, stride: int, count: int) -> "Window":
        """The window of a slice of this window's values."""
        return Window(self.start + start * self.stride, self.stride * stride if count > 1 else 1, count)

    def turned(self) -> "Window":
        """The window of this window's values in the opposite order."""
        return self.narrowed(self.count - 1, -1, self.count)

    def is_all(self, length: int) -> bool:
        """Whether these are all steps of a loop of `length`, in their order."""
        return self == Window(0, 1, length)


def position(t: Any, window: Window, length: int) -> Any:
    """The number of step `t` among the steps of the window; within range also for steps outside of it."""
    if window.is_all(length):
        return t
    offset = t - np.int32(window.start)
    row = offset if window.stride == 1 else lax.div(offset, np.int32(window.stride))
    return lax.clamp(np.int32(0), row, np.int32(window.count - 1))


def in_window(t: Any, window: Window) -> Any:
    """Whether step `t` is one of the window, a boolean scalar."""
    lowest, highest = sorted((window.start, window.start + (window.count - 1) * window.stride))
    hit = (t >= np.int32(lowest)) & (t <= np.int32(highest))
    if abs(window.stride) != 1:
        hit = hit & (lax.rem(t - np.int32(lowest), np.int32(abs(window.stride))) == 0)
    return hit
