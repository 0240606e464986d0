"""The command line: what it takes, what it says, and how it fails."""

import sys
from pathlib import Path
from typing import Any

import pytest

from aerogel import cli
from aerogel._launch import RunOptions, interpreter_flags


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been started."""
    calls: list[Any] = []
    monkeypatch.setattr(cli, "launch", lambda *given: calls.append(given))
    return calls


def test_options_end_at_the_script(launched: list[Any], tmp_path: Path) -> None:
    """Aerogel's options stand before the script; the script gets all that follows, whatever it looks like."""
    report = str(tmp_path / "run.json")
    cli.main(["run", "--report", report, "--compare", "--numerics=strict", "s.py", "--quiet", "-m", "--", "--help"])
    cli.main(["run", "--quiet", "-m", "package.module", "--compare"])
    cli.main(["run", "--", "-odd.py"])
    cli.main(["run", "-", "x"])
    assert [(options, target) for options, _, target in launched] == [
        (
            RunOptions(False, report, True, "strict", "s.py --quiet -m -- --help"),
            ["s.py", "--quiet", "-m", "--", "--help"],
        ),
        (RunOptions(quiet=True, command="-m package.module --compare"), ["-m", "package.module", "--compare"]),
        (RunOptions(command="-odd.py"), ["-odd.py"]),
        (RunOptions(command="- x"), ["-", "x"]),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: command"),
        (["walk"], "invalid choice: 'walk'"),
        (["run"], "which script?"),
        (["run", "-m"], "argument expected for the -m option"),
        (["run", "--numerics", "exact", "s.py"], "invalid choice: 'exact'"),
        (["run", "--report", "r.html", "s.py"], "'r.html' ends in neither .json nor .txt"),
        (["run", "--report", "/nowhere/r.txt", "s.py"], "the folder of '/nowhere/r.txt' does not exist"),
        (["run", "--fast", "s.py"], "there is no option --fast\n"),
        (["run", "--numeric", "strict", "s.py"], "there is no option --numeric; --numerics is meant?"),
        (["run", "--compare=1", "s.py"], "ignored explicit argument '1'"),
        ([__file__, "x y"], f"to run a script: aerogel run {__file__} 'x y'"),
        (["run", "--report"], "--report: expected one argument"),
    ],
)
def test_usage_errors(words: list[str], message: str, launched: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, a message that names the word, and nothing is started."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not launched


def test_a_report_that_cannot_be_written(
    launched: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is found out before a long run, not after it."""
    (tmp_path / "run.json").mkdir()
    with pytest.raises(SystemExit):
        cli.main(["run", "--report", str(tmp_path / "run.json"), "s.py"])
    assert "cannot be written" in capsys.readouterr().err
    assert not launched


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 0, on stdout."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    shown = capsys.readouterr().out
    assert not ended.value.code
    assert "aerogel" in shown
    if "run" in words:
        assert all(option in shown for option in ("--quiet", "--report FILE", "--compare", "--numerics", "-m package"))


@pytest.mark.parametrize(
    ("before", "as_module", "flags"),
    [
        (["bin/aerogel"], False, []),
        (["-O", "-X", "m", "bin/aerogel"], False, ["-O", "-X", "m"]),
        (["-m", "aerogel"], True, []),
        (["-W", "error", "-m", "aerogel"], True, ["-W", "error"]),
        (["-Om", "aerogel"], True, ["-O"]),
        (["-u", "-maerogel"], True, ["-u"]),
    ],
)
def test_flags_of_the_interpreter(before: list[str], as_module: bool, flags: list[str]) -> None:
    """Python's own flags go on to the interpreter that runs the script."""
    assert interpreter_flags([sys.executable, *before, "run", "s.py"], 2, as_module) == flags


def test_options_survive_the_environment() -> None:
    """What the next interpreter reads is what was asked for."""
    options = RunOptions(True, "/a b/r.json", True, "strict", "s.py 'x y'")
    assert RunOptions.from_strings(options.to_strings()) == options
