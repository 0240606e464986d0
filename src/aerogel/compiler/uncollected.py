"""Rewriting without the garbage collector, which would look through all of JAX again and again for nothing."""

import gc
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """A context in which no cycles are collected, in this thread nor in others; as it was after the last of several.

    A rewritten program of 10,000 equations makes so many objects that live on that Python looks through every object
    of the process a few times: a quarter of the time of the passes.
    """
    me = object()
    try:
        _pause.enter(me)
        yield
    finally:
        _pause.leave(me)


class _Pause:
    """Who is in such a context, and whether the collector is to run again when none is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._was_on = False

    def enter(self, one: object) -> None:
        with self._lock:
            self._inside.add(one)
            if len(self._inside) == 1:
                self._was_on = gc.isenabled()
                gc.disable()

    def leave(self, one: object) -> None:
        with self._lock:
            last = self._inside == {one}
            self._inside.discard(one)
            if last and self._was_on:
                gc.enable()

    def forget(self) -> None:
        """In a process that was forked: the threads that were inside, one perhaps with the lock, are not in it."""
        if self._inside and self._was_on:
            gc.enable()
        self._lock = threading.Lock()
        self._inside = set()


_pause = _Pause()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_pause.forget)
