"""The time that the passes of one program may take together."""

import _thread
import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

RING_AGAIN_SECONDS = 0.5


class PassTimeout(BaseException):
    """The passes of a program ran longer than their budget.

    No `Exception`: a pass that catches these in its loop would never end.
    """


def budget_seconds(equations: int) -> float:
    """For a program of so many equations: generous, and linear in the program's size."""
    return float(os.environ.get("AEROGEL_PASS_SECONDS", "20")) + 0.01 * equations


class Budget:
    """Seconds, from now on, in which this thread may `run` functions; close it at the end.

    An asynchronous exception is the only way to stop a loop in another's pure Python code; signals would work in
    the main thread only. What waits inside one C call is not stopped.
    """

    def __init__(self, seconds: float):
        self.is_over = False
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._is_running = False
        self._closed = threading.Event()
        # A `threading.Thread` would be waited for until it runs: half of the time that a small program takes.
        _thread.start_new_thread(self._watch, (seconds,))

    def run(self, function: Callable[[], T]) -> T:
        """What `function` returns.

        Raises:
            PassTimeout: time was over before it did.
        """
        late = False
        try:
            self._is_running = True
            return function()
        finally:
            # After it, nothing is on its way to the thread: an exception must not reach the user's code. No function of
            # its own: what arrives where a function starts would leave it before its `try`. And nothing is taken back
            # by `PyThreadState_SetAsyncExc(thread, NULL)`: that leaves the interpreter (CPython 3.11) looking for an
            # exception at every step from then on, and for ever under a profiler.
            waiting = True
            while waiting:
                try:
                    with self._lock:
                        self._is_running = False
                    for _ in range(2):  # an exception that was on its way arrives where a loop jumps back
                        pass
                    waiting = False
                except PassTimeout:
                    late = True
            if late:
                raise PassTimeout

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()

    def _watch(self, seconds: float) -> None:
        """Raises in the thread, again and again: what arrives in a destructor or an `except` clause is lost."""
        while not self._closed.wait(seconds):
            self.is_over, seconds = True, RING_AGAIN_SECONDS
            with self._lock:
                if self._is_running:
                    raise_in(self._thread, ctypes.py_object(PassTimeout))


raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
