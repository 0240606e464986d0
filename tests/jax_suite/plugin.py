"""A pytest plugin under which JAX's own tests use `jax.jit(ag.optimize(f))` wherever they write `jax.jit(f)`.

`run.py` loads it with `-p jax_suite.plugin` and steers it by environment variables:

    AEROGEL_SUITE          off: nothing replaced; identity: an optimise of no passes; on: the real one;
                           forced: the real one, with programs kept in normal form also where no pass fired;
                           into-loops, out-of-loops: forced, at prices under which whatever may move does;
                           harvest: each small program is run with drawn readers behind it, see harvest.py
    AEROGEL_SUITE_RECORD   file that gets one JSON line when a test starts and one when it ends
    AEROGEL_SUITE_SHARD    "i/n": only the tests whose name hashes to i modulo n
    AEROGEL_SUITE_ONLY     file with one test name per line: only these

Tests that the record names already are left out, so that a run which crashed goes on where it stopped by being started
again.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODES = ("off", "identity", "on", "forced", "into-loops", "out-of-loops", "harvest")


def pytest_configure(config: pytest.Config) -> None:
    """Replace `jax.jit` before any test module is imported, and open the record."""
    mode = os.environ.get("AEROGEL_SUITE", "off")
    if mode not in MODES:
        raise pytest.UsageError(f"AEROGEL_SUITE is {mode!r}; it may be one of {', '.join(MODES)}")
    borrow_test_modules(config.rootpath)
    if mode != "off":
        replace_jit(optimiser(mode))
    if path := os.environ.get("AEROGEL_SUITE_RECORD"):
        config.pluginmanager.register(Recorder(Path(path)), "jax-suite-recorder")


def borrow_test_modules(checkout: Path) -> None:
    """Let tests import what only tests need of `jax._src`, and the wheel therefore lacks, from the checkout."""
    import jax

    jax._src.__path__.append(str(checkout / "jax" / "_src"))


def optimiser(mode: str) -> Callable[[Any], Any]:
    """What stands between a test's function and `jit`."""
    import aerogel as ag

    # Set as the default instead of given as `passes=`: only calls without options share one wrapper per function.
    chosen = importlib.import_module("aerogel.transform.optimize")
    if mode == "identity":
        chosen.DEFAULT_PASSES = ()
    elif mode == "harvest":
        from drawing.free_prices import free_prices
        from jax_suite.harvest import Harvest

        free_prices("out of loops")
        os.environ["AEROGEL_PASS_SECONDS"] = "100000"  # to run a program takes longer than to rewrite it
        chosen.DEFAULT_PASSES = (Harvest(),)
    elif mode != "on":
        if mode != "forced":
            from drawing.free_prices import free_prices

            free_prices(mode.replace("-", " "))
        chosen.DEFAULT_PASSES = (*chosen.DEFAULT_PASSES, ClaimToHaveFired())
    return ag.optimize


class ClaimToHaveFired:
    """A pass that does nothing and says that it did, so that the normal form is what runs."""

    name = "claim-to-have-fired"
    exactness = "bitwise"

    def __call__(self, program: Any, context: Any) -> tuple[Any, list[Any]]:
        from aerogel.compiler.report import Decision

        return program, [Decision(self.name, "nothing", "", True, "the suite asked for it")]


def replace_jit(optimise: Callable[[Any], Any]) -> None:
    """Make every door to `jit` compile `optimise(f)`, except for callers inside JAX.

    JAX calls its own `jit` for each eager primitive, in `device_put`, `make_jaxpr` and `eval_shape`, and decorates its
    own library with it; these keep the original. Its test utilities count as a test: `_CompileAndCheck`, which most of
    the numeric tests go through, calls `jit` there.
    """
    import jax
    from jax.experimental import pjit as old_door

    from aerogel import _jax

    api_module, pjit_module = _jax.jit_doors
    jit = replacement(api_module.jit, optimise)
    pjit = replacement(pjit_module.pjit, optimise)
    jax.jit = api_module.jit = jit
    pjit_module.pjit = pjit
    # The old door is a module `__getattr__` over this table, which warns; an attribute would silence the warning.
    message, _ = old_door._deprecations["pjit"]
    old_door._deprecations["pjit"] = (message, pjit)


def replacement(original: Callable[..., Any], optimise: Callable[[Any], Any]) -> Callable[..., Any]:
    """`original`, with `optimise` applied to the function when the caller is not a module of JAX."""

    @functools.wraps(original)
    def jit(*function: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if is_inside_jax(caller):
            return original(*function, **options)
        if not function:  # `@jax.jit(static_argnums=0)`
            decorate = original(**options)
            return lambda f: decorate(optimise(f))
        return original(optimise(function[0]), *function[1:], **options)

    return jit


def is_inside_jax(module: str) -> bool:
    return (module == "jax" or module.startswith("jax.")) and module != "jax._src.test_util"


class Recorder:
    """Chooses the tests that are still to run, and writes down what became of each."""

    def __init__(self, path: Path) -> None:
        known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.seen = {line["test"] for line in known if line["outcome"] != "started"}
        self.file = path.open("a")
        shard = os.environ.get("AEROGEL_SUITE_SHARD", "0/1")
        self.shard, self.shards = (int(part) for part in shard.split("/"))
        only = os.environ.get("AEROGEL_SUITE_ONLY")
        self.only = set(Path(only).read_text().splitlines()) if only else None

    def wanted(self, test: str) -> bool:
        if test in self.seen or (self.only is not None and test not in self.only):
            return False
        return zlib.crc32(test.encode()) % self.shards == self.shard

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        dropped = [item for item in items if not self.wanted(item.nodeid)]
        items[:] = [item for item in items if self.wanted(item.nodeid)]
        config.hook.pytest_deselected(items=dropped)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # the test module itself could not be imported
            self.write(test=report.nodeid, outcome="failed", seconds=0.0, error=str(report.longrepr)[-4000:])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(test=nodeid, outcome="started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # setup and teardown count only when something went wrong in them; a failed subtest has its test's name
        if report.when == "call" or report.outcome != "passed":
            error = str(report.longrepr)[-12000:] if report.failed else ""
            self.write(test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3), error=error)

    def write(self, **line: object) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()  # what a crash leaves behind must be readable
