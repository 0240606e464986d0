"""Claims about the time limit of passes."""

import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref
from contextlib import closing

import pytest

from aerogel.compiler import budget
from aerogel.compiler.budget import Budget, PassTimeout


def spin(seconds: float) -> None:
    """Pure Python for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_nothing_reaches_the_caller_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception arrives in `run` or never, however close the limit is to the end; other threads see nothing."""
    monkeypatch.setattr(budget, "RING_AGAIN_SECONDS", 1e-4)
    ended = {True: 0, False: 0}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for step in range(400):
            with closing(Budget(0.002)) as limit:
                try:
                    limit.run(lambda step=step: spin(step * 1e-5))
                    ended[False] += 1
                except PassTimeout:
                    ended[True] += 1
                spin(0.0005)  # an exception on its way would arrive here
    finally:
        sys.setswitchinterval(interval)
    assert min(ended.values()) > 20, "the limit was seldom close"


def test_time_in_which_nothing_ran_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped has not used its seconds; one that waits and waits has, in the end."""
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    with closing(Budget(0.1)) as limit:
        limit.run(lambda: spin(0.3))
        assert not limit.is_over
    with closing(Budget(0.02)) as limit, pytest.raises(PassTimeout):
        limit.run(lambda: spin(2.0))


def test_a_loop_that_catches_every_error_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """`except Exception` does not catch it, and one that is lost in a destructor comes again."""
    monkeypatch.setattr(budget, "RING_AGAIN_SECONDS", 0.01)
    lost = threading.Event()

    class Loses:
        def __del__(self) -> None:
            with contextlib.suppress(PassTimeout):
                spin(0.1)
                return
            lost.set()

    def run() -> None:
        end = time.perf_counter() + 2
        while time.perf_counter() < end:
            with contextlib.suppress(Exception):
                Loses()
                spin(1)

    with closing(Budget(0.02)) as limit, pytest.raises(PassTimeout):
        limit.run(run)
    assert lost.is_set()
    assert limit.is_over


def test_a_profiled_run_ends() -> None:
    """Nothing that a budget leaves behind in the interpreter keeps a profiler busy."""
    code = "import cProfile; p = cProfile.Profile(); p.enable(); b.run(dict); b.run(dict); p.disable(); b.close()"
    code = f"from aerogel.compiler.budget import Budget; b = Budget(100); {code}; print('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "done\n"


def test_a_closed_budget_waits_for_no_collector() -> None:
    """Its watch ends and lets go of it: no cycle is left that would keep what the passes had in hand."""
    gc.disable()
    try:
        budget = Budget(1e3)
        gone = weakref.ref(budget)
        budget.close()
        budget.close()  # once more does nothing
        del budget
        until = time.monotonic() + 30
        while gone() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert gone() is None
    finally:
        gc.enable()


def test_one_thread_watches_all() -> None:
    """The start of a thread takes longer than the passes of a small program; who is to ring first rings first."""
    with closing(Budget(1e3)), closing(Budget(0.05)) as short, closing(Budget(2e3)):
        assert sum(isinstance(one, budget.Watch) for one in threading.enumerate()) == 1
        with pytest.raises(PassTimeout):
            short.run(lambda: spin(60))


def test_a_forked_process_has_a_watch_of_its_own() -> None:
    """Threads do not survive a fork."""
    code = """
import os
from aerogel.compiler.budget import Budget, PassTimeout
def spin():
    while True:
        pass
open = Budget(100)
child = os.fork()
if child == 0:
    try:
        Budget(0.05).run(spin)
    except PassTimeout:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "7\n"
