"""Results as JSON, as a line for the terminal, and as the page `docs/reference/benchmarks.md`: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ._case import Bounds
from ._finding import Finding
from ._run import Row
from ._timing import Quartiles

SCHEMA = 1
MB = 1e6
Result = Row | Finding

INTRODUCTION = """\
# Benchmarks

Written by `make bench`; do not edit. *Natural* is what a user writes, under plain `jax.jit`; *optimised* the same under
`jax.jit(ag.optimize(...))`; *hand* the fastest of the expert forms that were tried, on this machine, in this run.

All forms run once per round, in changing order, in one process, for at least 20 rounds. A time ratio is the median of
the ratios inside the rounds, with its quartiles in brackets. Temp memory is XLA's plan
(`memory_analysis().temp_size_in_bytes`). A row passes when its medians keep all its bounds; one that missed a bound was
measured again with three times the rounds. Where XLA compiled two forms to one program, the row says so, and their
ratio is 1 whatever was measured. Tables with a column *measure* are measured as their claim says.
"""


def to_record(claim: str, doc: str, machine: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """What is stored of one claim."""
    rows = [{"kind": type(r).__name__, **asdict(r), "missed": list(r.missed)} for r in results]
    return {"schema": SCHEMA, "claim": claim, "doc": doc, "machine": dict(machine), "rows": rows}


def from_record(record: Mapping[str, Any]) -> list[Result]:
    """The results in a stored claim: the inverse of `to_record`."""
    if record["schema"] != SCHEMA:
        raise ValueError(f"results of schema {record['schema']}; this program reads {SCHEMA}: run the claim again")
    return [_result(dict(row)) for row in record["rows"]]


def _result(row: dict[str, Any]) -> Result:
    kind = {"Row": Row, "Finding": Finding}[row.pop("kind")]
    missed = tuple(row.pop("missed"))
    for name, value in row.items():
        if isinstance(value, dict):
            row[name] = Quartiles(**value) if "median" in value else Bounds(**value)
    if kind is Finding:
        return Finding(**row)
    row["hand_forms"] = tuple(tuple(form) for form in row["hand_forms"])
    row["same_code"] = tuple(row["same_code"])
    return Row(**row, missed=missed)


def to_markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The page: per claim its sentence, the machine it ran on, and a line per row."""
    return INTRODUCTION + "".join(_section(record) for record in records)


def _section(record: Mapping[str, Any]) -> str:
    results = from_record(record)
    machine = record["machine"]
    where = ", ".join(str(machine[key]) for key in ("platform", "processor"))
    where += f", {machine['cores']} cores, jax {machine['jax']}, commit {machine['commit']}"
    missed = sum(bool(r.missed) for r in results)
    verdict = f"{missed} of {len(results)} rows miss a bound" if missed else f"all {len(results)} rows pass"
    lines = [f"\n## {record['claim']}\n", record["doc"].strip(), f"\n{where}: {verdict}.\n"]
    for table in (
        _row_table([r for r in results if isinstance(r, Row)]),
        _finding_table([r for r in results if isinstance(r, Finding)]),
    ):
        lines += table
    return "\n".join(lines) + "\n"


def to_line(result: Result) -> str:
    """One line for the terminal."""
    verdict = f"MISSED: {'; '.join(result.missed)}" if result.missed else "ok"
    if isinstance(result, Finding):
        cells = [result.case, f"{result.measure} {_ratio(result.ratio)}", f"bound {result.bound}", result.details]
        return " | ".join([*cells, verdict])
    cells = [result.case, result.mode, f"natural {result.natural_seconds.median * 1e3:.2f} ms"]
    for name in ("natural_over_hand", "natural_over_optimised", "optimised_over_hand"):
        if (quartiles := getattr(result, name)) is not None:
            cells.append(f"{name.replace('_over_', ' / ')} {_ratio(quartiles)}")
    differences = f"hand differs by {result.hand_difference:.0e}"
    if result.optimised_difference is not None:
        differences += f", optimised by {result.optimised_difference:.0e}"
    cells += [f"MB {_temp_cell(result)}", differences, f"best hand: {result.best_hand}"]
    cells += [f"same program as {name}" for name in result.same_code]
    cells += [f"{name}: {seconds * 1e3:.2f} ms {size / MB:.2f} MB" for name, seconds, size in result.hand_forms]
    return " | ".join([*cells, verdict])


def _row_table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    head = (
        "case",
        "",
        "natural ms",
        "natural / optimised",
        "optimised / hand",
        "temp MB natural / optimised / hand",
        "bounds",
        "",
        "best hand form",
    )
    return [_line(head), _line(["---"] * len(head)), *(_line(_row_cells(row)) for row in rows)]


def _row_cells(row: Row) -> list[str]:
    return [
        row.case,
        row.mode,
        f"{row.natural_seconds.median * 1e3:.2f}",
        _ratio(row.natural_over_optimised),
        _ratio(row.optimised_over_hand),
        _temp_cell(row),
        describe_bounds(row.bounds),
        "; ".join(row.missed) if row.missed else ("-" if row.optimised_seconds is None else _passed(row)),
        row.best_hand,
    ]


def _passed(row: Row) -> str:
    return "pass" + "".join(f", same program as {name}" for name in row.same_code)


def _finding_table(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    head = ("case", "measure", "ratio", "bound", "", "details")
    return [
        _line(head),
        _line(["---"] * len(head)),
        *(
            _line(
                [
                    f.case,
                    f.measure,
                    _ratio(f.ratio),
                    "-" if f.bound is None else f"{f.bound:g}",
                    "; ".join(f.missed) or "pass",
                    f.details,
                ]
            )
            for f in findings
        ),
    ]


def describe_bounds(bounds: Bounds | None) -> str:
    """The bounds of a row in a few words."""
    if bounds is None:
        return "-"
    words = [
        (bounds.over_hand, "hand x {:g}"),
        (bounds.over_natural, "natural x {:g}"),
        (bounds.speedup, "{:g} x faster"),
        (bounds.memory_over_hand, "memory of hand x {:g}"),
        (bounds.memory_saving, "memory / {:g}"),
    ]
    return ", ".join(text.format(value) for value, text in words if value is not None)


def _temp_cell(row: Row) -> str:
    sizes = (row.natural_bytes, row.optimised_bytes, row.hand_bytes)
    return " / ".join("-" if size is None else f"{size / MB:.2f}" for size in sizes)


def _ratio(quartiles: Quartiles | None) -> str:
    return "-" if quartiles is None else f"{quartiles.median:.2f} [{quartiles.low:.2f}, {quartiles.high:.2f}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
