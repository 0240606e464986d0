"""Whoever calls `jax.jit`, the script prints what it prints under python, and the report knows the user's functions."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .conftest import Runner

SCRIPTS = Path(__file__).parent / "scripts"

# For each script the functions in its report: name, where (or the user's line that called it), calls, traces.
FUNCTIONS = {
    "equinox_lstm": {("train_step", "equinox_lstm.py:31", 3, 1), ("predict", "equinox_lstm.py:38", 1, 1)},
    "flax_nnx": {("train_step", "flax_nnx.py:20", 3, 1), ("predict", "flax_nnx.py:27", 1, 1)},
    "flax_linen": {("train_step", "flax_linen.py:29", 3, 1), ("Block.__call__", "flax_linen.py:12", 3, 1)},
    "diffrax_ode": {("final", "diffrax_ode.py:19", 2, 1), ("diffeqsolve", "diffrax_ode.py:14", 1, 1)},
    "numpyro_nuts": {("_fori_collect_loop", "numpyro_nuts.py:17", 1, 1)},
    "blackjax_hmc": {("step_fn", "blackjax_hmc.py:17", 3, 1), ("sample", "blackjax_hmc.py:21", 1, 1)},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_library(runner: Runner, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is the same; functions of the user's have their own lines, a library's the line that called it."""
    shutil.copy(SCRIPTS / f"{name}.py", runner.folder)
    monkeypatch.setenv("AEROGEL_COMPARE_SECONDS", "0")  # a few repeats: what is measured is no subject here
    wanted = runner.python(f"{name}.py")
    got = runner.aerogel("--quiet", "--compare", "--report", "run.json", f"{name}.py")
    assert (got.status, got.out, got.err) == (0, wanted.out, wanted.err)
    report = json.loads((runner.folder / "run.json").read_text())
    rows = {(f["name"], f["called_from"] or f["where"], f["calls"], len(f["traces"])) for f in report["functions"]}
    assert rows >= FUNCTIONS[name]
    measured = [m for f in report["functions"] for m in f["measurements"]]
    assert measured
    assert all(m["status"] != "skipped" and (m["difference"] or 0) < 1e-4 for m in measured)


def test_whose_function_is_not_asked_of_jax() -> None:
    """The scripts above really use what they are there for: none of them imports Aerogel."""
    sources: list[Any] = [path.read_text() for path in SCRIPTS.glob("*.py")]
    assert len(sources) == len(FUNCTIONS)
    assert not any("aerogel" in source for source in sources)
