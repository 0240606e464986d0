"""A run's report as tables: what was done to each function, and what it measured. Pure, but for `print_report`."""

import importlib.util
import os
import sys
import textwrap
from typing import Any, TextIO

from aerogel._launch import NOTHING_COMPILED
from aerogel.compiler.render import change, count, kind_of
from aerogel.compiler.report import Decision

from ._data import FunctionRow, Measurement, RunReport
from ._table import Column, Line, Row, Table, layout, plain

MOST_FIRED, MOST_REFUSED, MOST_PLACES = 12, 2, 6
NARROWEST = 72
NO_TERMINAL = 80
FAILURE = "A pass failed: results are right, but the program was left as it was. Please report it."
LARGE_DIFFERENCE = 1e-3
AMPLIFIED = (
    "Large differences: samplers and chaotic simulations amplify rounding, so that they end elsewhere, and what is "
    "zero but for rounding, as the gradient of an attention's key bias, is another small number. In anything else, "
    "`ag.verify` finds out which form is nearer to float64."
)
PREDICTED = "flops, bytes moved and peak memory: predicted for one call."
STYLES = {"fired": "green", "refused": "dim", "failed": "red"}
MARKS = {"fired": "+", "refused": "-", "failed": "!"}
# What is predicted: the field of a cost, its unit, and of what.
QUANTITIES = (
    ("flops", "flop", "of arithmetic"),
    ("bytes_moved", "B", "of memory traffic"),
    ("peak_bytes", "B", "of peak memory"),
)


def to_text(report: RunReport, width: int = NO_TERMINAL, whole: bool = False) -> str:
    """The report as plain text of at most `width` columns; `whole`, with every decision."""
    drawn = [plain(layout(table, width)) for table in tables(report, whole)]
    return "\n\n".join([*drawn, "\n".join(closing_lines(report, width))]).strip() + "\n"


def tables(report: RunReport, whole: bool = False) -> list[Table]:
    """The table of what was done, and that of what was measured if anything was."""
    made = [overview(report, whole)] if report.shown else []
    measured = [(row, m, times) for row in report.shown for m, times in merged(row.measurements)]
    return made + ([measurements(measured)] if measured else [])


def overview(report: RunReport, whole: bool) -> Table:
    """A row per function: calls, traces and the predicted changes; below it, what was done and what was not."""
    changed = sum(row.is_changed for row in report.shown)
    names = ["function", "calls", "traced", *(["flops", "bytes", "peak"] if changed else [])]
    rows = [
        Row(
            (
                Line(row.name, "bold"),
                Line(str(row.calls)),
                Line(str(len(row.traces))),
                *([change_cell(row, name) for name, _, _ in QUANTITIES] if changed else []),
            ),
            (*facts_lines(row), *decision_lines(row, whole)),
        )
        for row in report.shown
    ]
    many = "function" if len(rows) == 1 else "functions"
    how = f"{report.numerics} numerics, {report.backend}"
    title = f"aerogel: {changed} of {len(rows)} compiled {many} rewritten ({how})"
    return Table(title, tuple(Column(name) for name in names), tuple(rows))


def change_cell(row: FunctionRow, what: str) -> Line:
    """The change of a cost in percent, "same", or nothing where nothing fired."""
    trace = row.largest
    if trace is None or not row.is_changed:
        return Line("")
    shown = change(getattr(trace.before, what), getattr(trace.after, what))
    return Line(shown) if shown else Line("same", "dim")


def facts_lines(row: FunctionRow) -> tuple[Line, ...]:
    """Where the function is, whether it was changed, what that saves, and how often it was part of others."""
    place = f"called at {row.called_from}" if row.called_from else row.where
    state = "" if row.is_changed else "unchanged" if row.traces else "not seen by the optimiser"
    calls = "call" if row.calls_inside == 1 else "calls"
    inside = f"{row.calls_inside} more {calls} inside other functions" if row.calls_inside else ""
    lines = (Line(", ".join(filter(None, (place, state))), "dim"), Line(inside, "dim"), Line(savings(row)))
    return tuple(line for line in lines if line.text)


def savings(row: FunctionRow) -> str:
    """As "saves 240 MB of peak memory; adds 275 kB moved"; a change that is too small for the table is left out."""
    trace = row.largest
    if trace is None or not row.is_changed:
        return ""
    found: dict[str, list[str]] = {"saves": [], "adds": []}
    for name, unit, what in reversed(QUANTITIES):
        before, after = getattr(trace.before, name), getattr(trace.after, name)
        if change(before, after):
            found["saves" if after < before else "adds"].append(f"{count(abs(after - before))}{unit} {what}")
    return "; ".join(f"{verb} {', '.join(amounts)}" for verb, amounts in found.items() if amounts)


def decision_lines(row: FunctionRow, whole: bool) -> list[Line]:
    """What failed, what fired and where, and what was refused; equal decisions at several places are one line."""
    groups: dict[str, dict[str, dict[str, int]]] = {"failed": {}, "fired": {}, "refused": {}}
    for decision, times in row.decisions:
        places = groups[kind_of(decision)].setdefault(said(decision), {})
        place = decision.where.partition(" in ")[0]
        places[place] = places.get(place, 0) + times
    lines = []
    for kind, most in (("failed", MOST_FIRED), ("fired", MOST_FIRED), ("refused", MOST_REFUSED)):
        entries = list(groups[kind].items())
        # A line that says "and 1 more" takes as much room as the one that it hides.
        kept = entries if whole or len(entries) <= most + 1 else entries[:most]
        lines += [Line(f"{MARKS[kind]} {places_of(at, whole)}{text}", STYLES[kind]) for text, at in kept]
        if len(kept) < len(entries):
            more = f"{MARKS[kind]} and {len(entries) - len(kept)} more {kind}, --report FILE has them"
            lines.append(Line(more, STYLES[kind]))
    return lines


def said(decision: Decision) -> str:
    """The pass and what it did; for refusals and failures the reason too."""
    if decision.fired:
        return f"{decision.rule}: {decision.what}"
    if decision.failed:
        return f"{decision.rule} FAILED: {decision.reason or decision.what}"
    return f"{decision.rule} refused: " + "; ".join(filter(None, (decision.what, decision.reason)))


def places_of(places: dict[str, int], whole: bool) -> str:
    """As "train.py:44, 46 x 3, model.py:9 "; the file is named once."""
    shown, last = [], ""
    kept = list(places.items()) if whole else list(places.items())[:MOST_PLACES]
    for place, times in kept:
        file, _, line = place.rpartition(":")
        # What has no line of the user's counts, but has no place to name.
        name = (line if file == last else place) or ("elsewhere" if len(places) > 1 else "")
        shown.append(name + (f" x {times}" if times > 1 else ""))
        last = file
    left = len(places) - len(kept)
    text = ", ".join(shown) + (f" and {left} more" if left else "")
    return f"{text.strip()} " if text else ""


def merged(measurements: tuple[Measurement, ...]) -> list[tuple[Measurement, int]]:
    """Signatures that were not measured for one reason are one entry, and so are unchanged ones; with how many."""
    groups: dict[Any, list[Measurement]] = {}
    for index, m in enumerate(measurements):
        groups.setdefault(index if m.status == "measured" else (m.status, m.reason), []).append(m)
    ordered = sorted(groups.values(), key=lambda group: group[0].status != "measured")
    return [(group[0], len(group)) for group in ordered]


def measurements(measured: list[tuple[FunctionRow, Measurement, int]]) -> Table:
    """A row per function and signature: times, their ratio, temporary memory, difference."""
    names = ("function", "natural", "optimised", "ratio", "temp memory", "difference")
    title = "measured: time per call, temporary memory, largest difference"
    several = {row.name for row, m, _ in measured if m.status == "measured" and m is not row.measurements[0]}
    rows = [measured_row(row, m, times, row.name in several) for row, m, times in measured]
    return Table(title, tuple(Column(name) for name in names), tuple(rows))


def measured_row(row: FunctionRow, m: Measurement, times: int, with_types: bool) -> Row:
    """One row of `measurements`; what was not measured says why in place of numbers."""
    name = Line(row.name, "bold")
    empty = Line("-", "dim")
    often = f" ({times} signatures)" if times > 1 else ""
    if m.status == "skipped":
        return Row((name, empty, empty, empty, empty, empty), (Line(f"not measured: {m.reason}{often}", "dim"),))
    if m.status == "unchanged":
        return Row((name, empty, Line("unchanged"), Line("1.00"), empty, empty))
    return Row(
        (
            name,
            Line(seconds(m.natural_seconds)),
            Line(seconds(m.optimized_seconds)),
            ratio_line(m.time_ratio),
            temp_cell(m),
            Line("0" if m.difference == 0 else f"{m.difference:.1e}"),
        ),
        tuple(Line(line, "dim") for line in (m.arguments * with_types, where_it_differs(m)) if line),
    )


def where_it_differs(m: Measurement) -> str:
    """In which result a large difference is, and how large that is."""
    large = m.difference is not None and m.difference > LARGE_DIFFERENCE
    return f"{m.difference:.1e} in {m.differs_in}" if large and m.differs_in else ""


def ratio_line(ratio: float | None) -> Line:
    """The ratio of times; green and red beyond what is noise."""
    if ratio is None:
        return Line("-")
    return Line(f"{ratio:.2f}", "green" if ratio < 0.97 else "red" if ratio > 1.03 else "")


def temp_cell(m: Measurement) -> Line:
    """As "72 MB -> 4 MB"."""
    if m.natural_temp_bytes is None or m.optimized_temp_bytes is None:
        return Line("unknown", "dim")
    return Line(f"{count(m.natural_temp_bytes)}B -> {count(m.optimized_temp_bytes)}B")


def seconds(value: float | None) -> str:
    """As "12.3 ms" or "45 us"."""
    if value is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def closing_lines(report: RunReport, width: int) -> list[str]:
    """What does not fit into a table."""
    lines = [] if report.shown else [NOTHING_COMPILED]
    if any(row.is_changed for row in report.shown):
        lines.append(PREDICTED)
    if report.only_inside:
        names = [row.name for row in report.only_inside]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        lines.append(f"only as part of others: {', '.join(names[:5])}{more}")
    if any((m.difference or 0) > LARGE_DIFFERENCE for row in report.shown for m in row.measurements):
        lines.append(AMPLIFIED)
    if report.failed:
        lines.append(FAILURE)
    return [part for line in (*lines, *report.notes) for part in textwrap.wrap(line, width)]


def print_report(report: RunReport, stream: TextIO | None = None) -> None:
    """The report on stderr, as wide as the terminal; with colours if rich is installed and stderr is a terminal."""
    # A script may have put something else in place of `sys.stderr`; the table belongs to the command.
    stream = stream or sys.__stderr__
    if stream is None or stream.closed:
        return
    width = terminal_width(stream)
    if importlib.util.find_spec("rich") is None:
        stream.write("\n" + to_text(report, width))
    else:
        print_rich(report, stream, width)
    stream.flush()


def print_rich(report: RunReport, stream: TextIO, width: int) -> None:
    """The same lines through rich."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, width=width, highlight=False)
    failure = textwrap.wrap(FAILURE, width)
    closing = [
        [Line(text, "red" if report.failed and text in failure else "")] for text in closing_lines(report, width)
    ]
    rule = "-" if console.encoding.lower() == "ascii" else "─"
    for lines in (*(layout(table, width, rule) for table in tables(report)), closing):
        console.print()
        for line in lines:
            pieces = [(piece.text, piece.style) for piece in line]
            text = Text.assemble(*pieces)
            text.rstrip()
            console.print(text, soft_wrap=True)


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal that `stream` writes to; of COLUMNS or 80 if it is none."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return max(int(given), NARROWEST)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or NO_TERMINAL, NARROWEST)
    except (OSError, ValueError):
        return NO_TERMINAL
