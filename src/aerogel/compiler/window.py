"""The steps of a loop that something works on, and where step `t` stands among them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax


@dataclass(frozen=True)
class Window:
    """The steps `start, start + stride, ...` (`count` of them) of a loop: what a slice over time keeps."""

    start: int
    stride: int
    count: int

    def narrowed(self, start: int, stride: int, count: int) -> "Window":
        """The window of a slice of this window's values."""
        return Window(self.start + start * self.stride, self.stride * stride, count)


def position(t: Any, window: Window, length: int) -> Any:
    """The number of step `t` among the steps of the window; within range also for steps outside of it."""
    if window.count == length:
        return t
    offset = t - np.int32(window.start)
    row = offset if window.stride == 1 else lax.div(offset, np.int32(window.stride))
    return lax.clamp(np.int32(0), row, np.int32(window.count - 1))


def in_window(t: Any, window: Window) -> Any:
    """Whether step `t` is one of the window, a boolean scalar."""
    last = window.start + (window.count - 1) * window.stride
    hit = (t >= np.int32(window.start)) & (t <= np.int32(last))
    if window.stride != 1:
        hit = hit & (lax.rem(t - np.int32(window.start), np.int32(window.stride)) == 0)
    return hit
