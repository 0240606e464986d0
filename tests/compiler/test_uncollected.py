"""No garbage is collected while a program is rewritten, and all of it is as before afterwards."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel._errors import PassFailedWarning
from aerogel.compiler.pipeline import Context
from aerogel.compiler.program import Program
from aerogel.compiler.report import Decision
from aerogel.compiler.uncollected import uncollected


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Whatever a test leaves behind, the next one has a collector."""
    assert gc.isenabled()
    yield
    gc.enable()


class Look:
    """A pass that notes whether the collector runs, and may fail."""

    name = "look"
    exactness = ag.compiler.Exactness.BITWISE

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.seen: list[bool] = []

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        self.seen.append(gc.isenabled())
        if self.fails:
            raise RuntimeError("a fault")
        return program, []


@pytest.mark.parametrize("fails", [False, True])
def test_passes_run_without_the_collector(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that fails brings it back, too."""
    monkeypatch.delenv("AEROGEL_STRICT", raising=False)
    look = Look(fails)

    f = jax.jit(ag.optimize(lambda x: jnp.sin(x) + 1, passes=(look,)))
    if fails:
        with pytest.warns(PassFailedWarning):
            f(1.0)
    else:
        f(1.0)
    assert look.seen == [False]
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off() -> None:
    """It is turned on for those only who had it on."""
    gc.disable()
    with uncollected():
        assert not gc.isenabled()
    assert not gc.isenabled()


@contextmanager
def inside_elsewhere() -> Iterator[None]:
    """While another thread is in such a context, until this one ends."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert inside.wait(60)
        yield
    finally:
        leave.set()
        thread.join()


def test_the_last_one_turns_it_on() -> None:
    """One in another and two side by side in threads: it comes back with the last of them, whichever that is."""
    with ExitStack() as other:
        with uncollected():
            with uncollected():
                pass
            assert not gc.isenabled()
            other.enter_context(inside_elsewhere())
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_has_its_collector() -> None:
    """The thread that turned it off is not there to turn it on."""
    with inside_elsewhere():
        child = os.fork()
        if child == 0:
            is_on = gc.isenabled()
            with uncollected():
                is_off = not gc.isenabled()
            os._exit(0 if is_on and is_off and gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
