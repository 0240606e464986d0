"""The time that the passes of one program may take together."""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

RING_AGAIN_SECONDS = 0.5
# A machine that sleeps, a process that is stopped or one of many lets time pass in which no pass ran. So the process
# must have computed for as long too, unless so many times the seconds are over: a pass may wait for what never comes.
PATIENCE = 10


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
        self.rings_at = time.monotonic() + seconds
        self._computed_at = time.process_time() + seconds
        self._given_up_at = time.monotonic() + PATIENCE * seconds
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._is_running = False
        self._watch = watch()
        self._watch.add(self)

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

    def missing(self, now: float) -> float:
        """Seconds that this process has still to compute before time is over; 0 when it is."""
        return 0.0 if now >= self._given_up_at else max(0.0, self._computed_at - time.process_time())

    def close(self) -> None:
        """Ends the watch."""
        self._watch.drop(self)

    def ring(self) -> None:
        """Raises in the thread if it runs a function. What arrives in a destructor or an `except` clause is lost."""
        self.is_over = True
        with self._lock:
            if self._is_running:
                raise_in(self._thread, ctypes.py_object(PassTimeout))


class Watch(threading.Thread):
    """The thread that rings for the budgets whose time is over, again and again; one serves all of a process.

    One for each would take more time than the passes of a small program: its start is waited for. (One that is not
    waited for has the identity of its parent at first, and then gets the exception that is meant for that.)
    """

    def __init__(self) -> None:
        super().__init__(name="aerogel-budgets", daemon=True)
        self._open: set[Budget] = set()
        self._changed = threading.Condition()
        self._wakes_at = 0.0
        self.start()

    def add(self, budget: Budget) -> None:
        """Watches a budget from now on."""
        with self._changed:
            self._open.add(budget)
            if budget.rings_at < self._wakes_at:
                self._changed.notify()

    def drop(self, budget: Budget) -> None:
        """Forgets a budget."""
        with self._changed:
            self._open.discard(budget)

    def run(self) -> None:
        """Never ends."""
        with self._changed:
            while True:
                self._ring(time.monotonic())
                self._wakes_at = min((budget.rings_at for budget in self._open), default=time.monotonic() + LONGEST)
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))

    def _ring(self, now: float) -> None:
        for budget in self._open:
            if budget.rings_at > now:
                continue
            missing = budget.missing(now)
            if not missing:
                budget.ring()
            budget.rings_at = now + (missing or RING_AGAIN_SECONDS)


LONGEST = 3600.0
_watches: dict[int, Watch] = {}  # by process: threads do not survive a fork
_starting = threading.Lock()


def watch() -> Watch:
    """That of this process."""
    pid = os.getpid()
    if pid not in _watches:
        with _starting:
            if pid not in _watches:
                _watches.clear()
                _watches[pid] = Watch()
    return _watches[pid]


raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
