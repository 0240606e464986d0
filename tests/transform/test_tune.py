"""Tuning: the fastest form by measurement, remembered on disk."""

import json
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel.transform import tune, tuned_files
from aerogel.transform.tuned_files import Choice, store, stored
from rules.rules_under_test import made

good = made(lambda x: jnp.log(1 + x), jnp.log1p, "no_worse", name="good")
bad = made(lambda x: jnp.sin(x) * 2, lambda x: jnp.sin(x) + jnp.sin(x), name="bad")
X = jnp.ones(3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("AEROGEL_CACHE", str(tmp_path))
    return tmp_path / "tuned"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times that hang on the operations alone: the first rule saves 30 %, the second costs 20 %. Lists all ratios."""
    told: list[float] = []

    def seconds(program: Any) -> float:
        names = [eqn.primitive.name for eqn in program.jaxpr.eqns]
        return 1.0 - 0.3 * ("log1p" in names) + 0.2 * ("mul" not in names)

    def ratio(one: Any, other: Any, args: Any) -> float:
        told.append(seconds(one) / seconds(other))
        return told[-1]

    monkeypatch.setattr(tune, "_compiled", lambda program, gradient: program)
    monkeypatch.setattr(tune, "_ratio", ratio)
    return told


def both(x: Any) -> Any:
    """A site for each rule."""
    return jnp.log(1 + x), jnp.sin(x) * 2


def said(f: Any, *args: Any, rules: Any = (good, bad)) -> tuple[list[str], str, list[str]]:
    """The rules that fired, the reason of the choice, and the operations of the result."""
    reports: list[Any] = []
    program = jax.make_jaxpr(ag.optimize(f, rules=rules, passes=(), tune=True, on_report=reports.append))(*args)
    (choice,) = [d for d in reports[-1].decisions if d.rule == "tune"]
    names = [eqn.primitive.name for eqn in program.jaxpr.eqns]
    return [d.rule for d in reports[-1].fired if d.rule != "tune"], choice.reason, names


def test_what_costs_time_is_left_out(clock: list[float]) -> None:
    """A rule without which the program is faster does not fire; the report has the ratio."""
    fired, reason, names = said(both, X)
    assert (fired, reason) == (["good"], "measured 0.70 of natural")
    assert ("log1p" in names, "mul" in names) == (True, True)


def test_the_program_stays_where_nothing_helps(clock: list[float]) -> None:
    """It is the program as it stood, and no decision says that anything fired."""
    fired, reason, names = said(both, X, rules=(bad,))
    assert (fired, reason) == ([], "measured 1.20 of natural")
    assert "mul" in names


def test_a_choice_is_remembered(clock: list[float], folder: Path) -> None:
    """The same program at the same types measures nothing; other types, rules or operations do."""
    said(both, X)
    count = len(clock)
    assert said(both, X)[:2] == (["good"], "measured 0.70 of natural, earlier")
    assert len(clock) == count
    for f, x, rules in (
        (both, jnp.ones(4), (good, bad)),
        (both, X, (bad, good)),
        (lambda x: both(x)[::-1], X, (good, bad)),
    ):
        before = len(clock)
        said(f, x, rules=rules)
        assert len(clock) > before
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("text", ["", "[]", '{"natural": 1}', '{"natural": true, "left_out": [1], "ratio": 0.5}'])
def test_a_broken_file_is_a_warning(clock: list[float], folder: Path, text: str) -> None:
    """It is measured again and written anew."""
    said(both, X)
    (path,) = folder.iterdir()
    path.write_text(text)
    with pytest.warns(ag.TuneFileWarning, match="cannot be read"):
        assert said(both, X)[1] == "measured 0.70 of natural"
    assert json.loads(path.read_text())["left_out"] == ["bad"]


def test_the_folder_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used longest ago goes; what was read is used."""
    import os

    monkeypatch.setattr(tuned_files, "MOST", 3)
    for k in range(3):
        store(tuned_files.file_of(str(k)), Choice(False, (), 0.5))
        os.utime(tuned_files.file_of(str(k)), (k, k))
    assert stored(tuned_files.file_of("0")) == Choice(False, (), 0.5)
    store(tuned_files.file_of("3"), Choice(True, (), 1.0))
    assert {path.stem for path in folder.iterdir()} == {"0", "2", "3"}


def test_a_reader_sees_whole_files(folder: Path) -> None:
    """While others write, a file holds one choice or the other; warnings are errors here."""
    path = tuned_files.file_of("shared")
    choices = [Choice(False, ("x" * 3000,), 0.5), Choice(True, (), 1.0)]
    writers = [threading.Thread(target=lambda c=c: [store(path, c) for _ in range(40)]) for c in choices]
    for writer in writers:
        writer.start()
    found = {stored(path) for _ in range(200)}
    for writer in writers:
        writer.join()
    assert found <= {None, *choices}
    assert stored(path) in choices
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_keeps_nothing(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning works, each time anew."""
    monkeypatch.setenv("AEROGEL_CACHE", "/proc/nowhere")
    assert said(both, X)[1] == said(both, X)[1] == "measured 0.70 of natural"


def test_what_cannot_be_run_is_not_measured(clock: list[float]) -> None:
    """Effects would be repeated, and a `while` may never end: the model decides."""

    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        return jnp.log(1 + x)

    def halving(x: Any) -> Any:
        return jnp.log(1 + jax.lax.while_loop(lambda c: c.sum() > 1, lambda c: c / 2, x))

    assert said(printing, X)[:2] == (["good"], "it has effects, which a measurement would repeat")
    assert said(halving, X)[:2] == (["good"], "how long its `while` loops run hangs on numbers that are not known")
    assert not clock


def test_it_is_measured_where_nothing_is_concrete() -> None:
    """In earnest, under `jit`, `vmap` and `grad`, of floats, integers and keys: results are what they were."""
    draw = lambda x, n, key: jnp.log(1 + x) * n + jax.random.uniform(key, ())  # noqa: E731
    tuned = ag.optimize(draw, rules=[good], passes=(), tune=True)
    args = (X, jnp.arange(3), jax.random.key(0))
    assert jnp.allclose(jax.jit(tuned)(*args), draw(*args))
    assert jnp.allclose(jax.vmap(tuned, (0, 0, None))(*args), jax.vmap(draw, (0, 0, None))(*args))
    gradient = jax.grad(lambda f, x: f(x, *args[1:]).sum(), argnums=1)
    assert jnp.allclose(gradient(tuned, X), gradient(draw, X))
    assert jnp.allclose(ag.jit(draw, rules=[good], passes=(), tune=True)(*args), draw(*args))
