"""Reports as text and JSON. The texts are golden: they are what users read."""

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from aerogel._launch import RunOptions, empty_report
from aerogel.audit import FunctionRow, Measurement, RunReport, to_json, to_text
from aerogel.audit._render import print_report
from aerogel.compiler.cost import Cost
from aerogel.compiler.render import count, report_to_dict, report_to_html, report_to_text
from aerogel.compiler.report import Decision, Report

FIRED = Decision(
    "loop-fusion", "sum over time becomes a partial result per step", "train.py:44 in loss", True, "", 0, 72_000_000
)
REFUSED = Decision(
    "loop-fission", "the input projection moves out", "train.py:50 in loss", False, "it would move 3 MB more"
)
FAILED = Decision("streaming", "left the program as it was", "", False, "ValueError: <bad> & worse", failed=True)
TRACE = Report(
    "train_step",
    "train.py:41",
    (FIRED, FIRED, REFUSED, FAILED),
    before=Cost(10_000_000, 75_800_000, 72_000_000),
    after=Cost(10_000_000, 3_800_000, 64_000),
    equations=41,
    seconds=0.0123,
)
NOTHING = replace(TRACE, decisions=(), after=TRACE.before)
MEASURED = Measurement("f32[64,8]", "measured", "", 0.0751, 0.0221, 72_000_000, 64_000, 3e-7, 20)
RUN = RunReport(
    command="train.py --epochs 3",
    numerics="fast",
    compared=True,
    backend="cpu",
    jax_version="0.10.2",
    functions=(
        FunctionRow("train_step", "train.py:41", "", 1200, 0, (TRACE,), (MEASURED,)),
        FunctionRow("evaluate", "train.py:80", "", 3, 2, (NOTHING,), (Measurement("f32[64,8]", "unchanged"),)),
        FunctionRow(
            "_fori_collect_loop_of_a_library", "mcmc.py:9", "train.py:90", 1, 0, (NOTHING, NOTHING),
            (Measurement("i32[]", "skipped", "it prints, calls back to Python or changes state: not run again"),) * 2,
        ),
        FunctionRow("helper", "train.py:12", "", 0, 7, ()),
    ),
    notes=("A note about the whole run.",),
)  # fmt: skip


def test_text_of_a_run(golden: Callable[[str, str], None]) -> None:
    """The table fits 80 columns, and says all that the issue asks for."""
    text = to_text(RUN, 80)
    assert max(map(len, text.splitlines())) <= 80
    golden("reports/run.txt", text)


@pytest.mark.parametrize("width", [72, 80, 120, 200])
def test_width(width: int) -> None:
    """Every width is kept, with and without rich."""
    assert max(map(len, to_text(RUN, width).splitlines())) <= width


def through_rich(report: RunReport, monkeypatch: pytest.MonkeyPatch, columns: str) -> str:
    """What a terminal of that many columns is sent."""
    monkeypatch.setenv("COLUMNS", columns)
    stream = StringIO()
    print_report(report, stream)
    return stream.getvalue()


def test_rich_shows_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both renderings are of one layout; rich adds colours, on a terminal, and a finer rule."""
    assert through_rich(RUN, monkeypatch, "80").replace("─", "-") == "\n" + to_text(RUN, 80)


def test_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rich is not installed the plain text is printed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert through_rich(RUN, monkeypatch, "80") == "\n" + to_text(RUN, 80)


def test_a_failed_pass_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a colour terminal the failure's line is red, and a sentence says what it means."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = through_rich(RUN, monkeypatch, "100").splitlines()
    assert any("\x1b[31m" in line and "streaming FAILED" in line for line in lines)
    assert any("\x1b[31m" in line and "A pass failed" in line for line in lines)


def lines_of(*decisions: Decision, whole: bool = False) -> list[str]:
    """The table's lines about decisions, for a function that made these, without their wrapping."""
    row = replace(RUN.functions[0], traces=(replace(TRACE, decisions=decisions),), measurements=())
    text = to_text(replace(RUN, functions=(row,), notes=()), 10_000, whole)
    return [line.strip() for line in text.splitlines() if line.startswith(("  +", "  -"))]


def test_equal_decisions_are_one_line() -> None:
    """What was done at several lines is said once, with the lines; several times at one line is counted."""
    found = lines_of(
        FIRED,
        FIRED,
        replace(FIRED, where="train.py:46 in loss"),
        replace(FIRED, where="train.py:46 in other"),
        replace(FIRED, where="model.py:9 in f"),
        replace(FIRED, where=""),
    )
    assert found == [
        "+ train.py:44 x 2, 46 x 2, model.py:9, elsewhere loop-fusion: sum over time becomes a partial result per step"
    ]
    (crowded,) = lines_of(*(replace(FIRED, where=f"train.py:{line}") for line in range(100)))
    assert crowded.startswith("+ train.py:0, 1, 2, 3, 4, 5 and 94 more loop-fusion: sum")


def test_long_lists_are_cut_and_counted() -> None:
    """Some decisions stand in the table, the others as a number; the text that `--report` writes has all of them."""
    refused = [replace(REFUSED, reason=f"reason {index}") for index in range(9)]
    fired = [replace(FIRED, what=f"thing {index}") for index in range(30)]
    cut = lines_of(*fired, *refused)
    assert [line for line in cut if "more" in line] == [
        "+ and 18 more fired, --report FILE has them",
        "- and 7 more refused, --report FILE has them",
    ]
    assert len(cut) == 12 + 1 + 2 + 1
    assert len(lines_of(*fired, *refused, whole=True)) == 39
    assert len(lines_of(*refused[:3])) == 3, "one line is not hidden behind a line that counts it"


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (Cost(10_000_000, 3_800_000, 64_000), "saves 71.9 MB of peak memory, 72.0 MB of memory traffic"),
        (Cost(9_000_000, 80_000_000, 72_000_000), "saves 1.0 Mflop of arithmetic; adds 4.2 MB of memory traffic"),
        (Cost(10_000_001, 75_800_001, 72_000_001), None),
    ],
)
def test_what_is_added_is_not_called_saved(after: Cost, line: str | None) -> None:
    """The table says what is saved and what is added, each as a positive amount, and nothing of tiny changes."""
    row = replace(RUN.functions[0], traces=(replace(TRACE, after=after),), measurements=())
    text = to_text(replace(RUN, functions=(row,)), 100)
    found = [found.strip() for found in text.splitlines() if found.startswith(("  saves", "  adds"))]
    assert found == ([] if line is None else [line])


@pytest.mark.parametrize("difference", [3e-7, 0.5, float("inf")])
def test_a_large_difference_is_explained(difference: float) -> None:
    """A reader of a sampler's row is told that rounding is amplified there, and what judges it."""
    where = "result[0]['bias'], f32[2] of numbers up to 3.0e-10"
    row = replace(RUN.functions[0], measurements=(replace(MEASURED, difference=difference, differs_in=where),))
    text = to_text(replace(RUN, functions=(row,)))
    assert [word in text for word in ("ag.verify", f"{difference:.1e} in {where}")] == [difference > 1e-3] * 2


def test_json_is_versioned_and_whole() -> None:
    """Every field of the data is there, numbers that JSON lacks as strings."""
    odd = replace(
        RUN, functions=(replace(RUN.functions[0], measurements=(replace(MEASURED, difference=float("inf")),)),)
    )
    data: Any = json.loads(to_json(odd))
    assert (data["kind"], data["schema"]) == ("aerogel run", 1)
    (row,) = data["functions"]
    assert row["measurements"][0]["difference"] == "inf"
    assert row["measurements"][0]["time_ratio"] == pytest.approx(0.294, abs=1e-3)
    assert row["traces"][0] == report_to_dict(TRACE)
    assert row["traces"][0]["decisions"][2]["reason"] == "it would move 3 MB more"
    before = {"flops": 10_000_000, "bytes_moved": 75_800_000, "peak_bytes": 72_000_000}
    assert row["traces"][0]["before"].items() >= before.items()


def test_nothing_compiled() -> None:
    """A run without a jitted function says so, in a line; without JAX, the same is written without importing it."""
    nothing = replace(RUN, functions=(), notes=(), backend="", jax_version="")
    assert to_text(nothing) == "aerogel: nothing was compiled with jax.jit\n"
    options = RunOptions(compare=nothing.compared, numerics=nothing.numerics, command=nothing.command)
    assert empty_report(replace(options, report="r.txt")) == to_text(nothing)
    assert json.loads(empty_report(replace(options, report="r.json"))) == json.loads(to_json(nothing))


def test_text_of_one_report(golden: Callable[[str, str], None]) -> None:
    """`ag.explain`'s text: costs, then what failed, fired and was refused; within the width; colours on request."""
    text = report_to_text(TRACE, 80)
    assert max(map(len, text.splitlines())) <= 80
    golden("reports/function.txt", text)
    assert "\x1b[31m" in report_to_text(TRACE, color=True)
    assert "nothing to rewrite was found" in report_to_text(NOTHING)


def test_html_of_one_report() -> None:
    """One piece without scripts or addresses; what a user or an error wrote is escaped."""
    html = report_to_html(replace(TRACE, name="<lambda>"))
    assert html.startswith("<div>")
    assert html.endswith("</div>")
    assert "&lt;lambda&gt;" in html
    assert "&lt;bad&gt; &amp; worse" in html
    assert not [part for part in ("<script", "http", "<lambda>", "<bad>") if part in html]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 "), (999, "999 "), (1000, "1.0 k"), (999_600, "1.0 M"), (72_000_000, "72.0 M"), (-5_100, "-5.1 k"),
        (123_456, "123 k"),
    ],
)  # fmt: skip
def test_numbers_with_prefixes(number: int, text: str) -> None:
    """Three digits and a prefix."""
    assert count(number) == text
