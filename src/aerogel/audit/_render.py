"""A run's report as tables: what was done to each function, and what it measured. Pure, but for `print_report`."""

import importlib.util
import os
import sys
import textwrap
from typing import Any, TextIO

from aerogel.compiler.render import change, count, kind_of
from aerogel.compiler.report import Decision

from ._data import FunctionRow, Measurement, RunReport
from ._table import Column, Line, Table, draw_plain, draw_rich

MOST_REFUSED = 2
NARROWEST = 72
FAILURE = "A pass failed: results are right, but the program was left as it was. Please report it."
NO_TERMINAL = 80
STYLES = {"fired": "green", "refused": "dim", "failed": "red"}
MARKS = {"fired": "+", "refused": "-", "failed": "!"}


def to_text(report: RunReport, width: int = NO_TERMINAL) -> str:
    """The whole report as plain text of at most `width` columns."""
    drawn = [draw_plain(table, width) for table in tables(report)]
    return "\n\n".join([*drawn, "\n".join(closing_lines(report, width))]).strip() + "\n"


def tables(report: RunReport) -> list[Table]:
    """The table of what was done, and that of what was measured if anything was."""
    made = [overview(report)] if report.shown else []
    measured = [(row, m, times) for row in report.shown for m, times in merged(row.measurements)]
    return made + ([measurements(measured)] if measured else [])


def overview(report: RunReport) -> Table:
    """A row per function: calls, traces, what happened to it, and the savings that the cost model predicts."""
    columns = (
        Column("function", width=22),
        Column("calls", is_number=True),
        Column("traced", is_number=True),
        Column("what was done", takes_rest=True),
        Column("flops", width=9, is_number=True),
        Column("bytes", width=9, is_number=True),
    )
    rows = [
        (
            function_cell(row),
            (Line(str(row.calls)), *([Line(f"+{row.calls_inside} in")] if row.calls_inside else [])),
            (Line(str(len(row.traces))),),
            done_cell(row),
            saved_cell(row, "flops"),
            saved_cell(row, "bytes_moved"),
        )
        for row in report.shown
    ]
    changed = sum(row.is_changed for row in report.shown)
    many = "function" if len(rows) == 1 else "functions"
    how = f"{report.numerics} numerics, {report.backend}"
    title = f"aerogel: {changed} of {len(rows)} compiled {many} rewritten ({how})"
    return Table(title, columns, tuple(rows))


def function_cell(row: FunctionRow) -> tuple[Line, ...]:
    """The name, and below it the user's line."""
    place = f"at {row.called_from}" if row.called_from else row.where
    return (Line(row.name, "bold"), *([Line(place, "dim")] if place else []))


def done_cell(row: FunctionRow) -> tuple[Line, ...]:
    """What failed, what fired and where, and the first refusals."""
    groups: dict[str, list[tuple[Decision, int]]] = {"failed": [], "fired": [], "refused": []}
    for decision, times in row.decisions:
        groups[kind_of(decision)].append((decision, times))
    lines = [decision_line(d, n) for d, n in groups["failed"] + groups["fired"]]
    if not lines:
        lines = [Line("unchanged" if row.traces else "not seen by the optimiser", "dim")]
    lines += [decision_line(d, n) for d, n in groups["refused"][:MOST_REFUSED]]
    left = len(groups["refused"]) - MOST_REFUSED
    return (*lines, *([Line(f"- {left} more refused", "dim")] if left > 0 else []))


def decision_line(decision: Decision, times: int) -> Line:
    """As "+ train.py:44 loop-fusion: sum over time becomes ... (4x)"; for refusals and failures the reason."""
    kind = kind_of(decision)
    place = decision.where.partition(" in ")[0]
    text = decision.what if kind == "fired" else decision.reason or decision.what
    often = f" ({times}x)" if times > 1 else ""
    head = " ".join(part for part in (MARKS[kind], place, decision.rule) if part)
    return Line(f"{head}{' FAILED' if kind == 'failed' else ''}: {text}{often}", STYLES[kind])


def saved_cell(row: FunctionRow, what: str) -> tuple[Line, ...]:
    """What one call saves of its flops or bytes, absolute and as a change; empty when nothing fired."""
    trace = row.largest
    if trace is None or not row.is_changed:
        return (Line(""),)
    before, after = getattr(trace.before, what), getattr(trace.after, what)
    if not change(before, after):
        return (Line("same", "dim"),)
    unit = "" if what == "flops" else "B"
    return (Line(change(before, after)), Line(f"{count(after - before)}{unit}".strip(), "dim"))


def merged(measurements: tuple[Measurement, ...]) -> list[tuple[Measurement, int]]:
    """Signatures that were not measured for one reason are one entry, and so are unchanged ones; with how many."""
    groups: dict[Any, list[Measurement]] = {}
    for index, m in enumerate(measurements):
        groups.setdefault(index if m.status == "measured" else (m.status, m.reason), []).append(m)
    ordered = sorted(groups.values(), key=lambda group: group[0].status != "measured")
    return [(group[0], len(group)) for group in ordered]


def measurements(measured: list[tuple[FunctionRow, Measurement, int]]) -> Table:
    """A row per function and signature: times, their ratio, temporary memory, difference."""
    columns = (
        Column("function", takes_rest=True),
        Column("natural", is_number=True),
        Column("optimised", is_number=True),
        Column("ratio", is_number=True),
        Column("temp memory", is_number=True),
        Column("difference", is_number=True),
    )
    title = "measured: time per call, temporary memory, largest difference"
    return Table(title, columns, tuple(measured_row(*entry) for entry in measured))


def measured_row(row: FunctionRow, m: Measurement, times: int) -> tuple[tuple[Line, ...], ...]:
    """One row of `measurements`; what was not measured says why in place of numbers."""
    often = f" ({times} signatures)" if times > 1 else ""
    name = (Line(row.name + often, "bold"), *([Line(f"not measured: {m.reason}", "dim")] if m.reason else []))
    empty = (Line("-"),)
    if m.status == "skipped":
        return (name, empty, empty, empty, empty, empty)
    if m.status == "unchanged":
        return (name, empty, (Line("unchanged"),), (Line("1.00"),), empty, empty)
    return (
        name,
        (Line(seconds(m.natural_seconds)),),
        (Line(seconds(m.optimized_seconds)),),
        (ratio_line(m.time_ratio),),
        temp_cell(m),
        (Line("0" if m.difference == 0 else f"{m.difference:.1e}"),),
    )


def ratio_line(ratio: float | None) -> Line:
    """The ratio of times; green and red beyond what is noise."""
    if ratio is None:
        return Line("-")
    return Line(f"{ratio:.2f}", "green" if ratio < 0.97 else "red" if ratio > 1.03 else "")


def temp_cell(m: Measurement) -> tuple[Line, ...]:
    """As "72 MB -> 4 MB"."""
    if m.natural_temp_bytes is None or m.optimized_temp_bytes is None:
        return (Line("unknown", "dim"),)
    return (Line(f"{count(m.natural_temp_bytes)}B -> {count(m.optimized_temp_bytes)}B"),)


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
    lines = [] if report.shown else ["aerogel: nothing was compiled with jax.jit"]
    if report.only_inside:
        names = [row.name for row in report.only_inside]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        lines.append(f"only as part of others: {', '.join(names[:5])}{more}")
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
    """The same tables and lines through rich."""
    from rich.console import Console

    console = Console(file=stream, width=width, highlight=False)
    for table in tables(report):
        console.print()
        console.print(table.title, style="bold", markup=False)
        console.print(draw_rich(table, width))
    console.print()
    failure = textwrap.wrap(FAILURE, width)
    for line in closing_lines(report, width):
        console.print(line, style="red" if report.failed and line in failure else None, markup=False)


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal that `stream` writes to; of COLUMNS or 80 if it is none."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return max(int(given), NARROWEST)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or NO_TERMINAL, NARROWEST)
    except (OSError, ValueError):
        return NO_TERMINAL
