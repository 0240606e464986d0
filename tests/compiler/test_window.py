"""Windows of steps and the parts of a loop, against counting them one by one."""

import itertools

import numpy as np
import pytest

from aerogel.compiler.fusion.split import parts_of
from aerogel.compiler.fusion.window import Window, in_window, position

WINDOWS = [
    (length, Window(start, stride, count))
    for length in range(1, 14)
    for start, stride, count in itertools.product(range(length), range(1, length + 1), range(1, length + 1))
    if start + (count - 1) * stride < length
]


def steps(window: Window) -> list[int]:
    """The steps of a window, counted."""
    return [window.start + k * window.stride for k in range(window.count)]


@pytest.mark.parametrize("reverse", [False, True])
def test_parts_run_each_step_once_in_order(reverse: bool) -> None:
    """Parts of every window of every loop of up to 13 steps: each step runs once, in order."""
    for length, window in WINDOWS:
        ran: list[tuple[int, bool]] = []
        for part in parts_of(window, length, reverse):
            blocks = range(part.count)
            for block in reversed(blocks) if reverse else blocks:
                places = range(part.width)
                # Within a block its quiet steps run first, then the full one.
                inside = [
                    (part.start + block * part.width + place, place == part.full)
                    for place in (reversed(places) if reverse else places)
                ]
                assert part.full is None or inside[-1][1], (length, window)
                ran += inside
        order = range(length - 1, -1, -1) if reverse else range(length)
        full = set(steps(window))
        assert ran == [(t, t in full) for t in order], (length, window)


def test_membership_and_position() -> None:
    """`in_window` holds at the window's steps only; `position` numbers those and stays in range at all others."""
    for length, window in [*WINDOWS[::7], *((length, window.turned()) for length, window in WINDOWS[::9])]:
        members = steps(window)
        for t in range(length):
            assert bool(in_window(np.int32(t), window)) == (t in members)
            place = int(position(np.int32(t), window, length))
            if t in members:
                assert place == members.index(t)
            assert 0 <= place < window.count or window.is_all(length)


def test_a_slice_of_a_window() -> None:
    """`narrowed` is slicing the list of steps."""
    for _, window in WINDOWS[::5]:
        for start, stride in itertools.product(range(window.count), (1, 2, 3)):
            wanted = steps(window)[start::stride]
            assert steps(window.narrowed(start, stride, len(wanted))) == wanted


def test_turned_windows() -> None:
    """The opposite order of a window's values, and a slice of it, are those of the list of steps."""
    for _, window in WINDOWS[::5]:
        backwards = window.turned()
        assert steps(backwards) == steps(window)[::-1]
        assert backwards.turned() == window or window.count == 1
        for start, stride in itertools.product(range(window.count), (1, 2)):
            wanted = steps(backwards)[start::stride]
            assert steps(backwards.narrowed(start, stride, len(wanted))) == wanted
