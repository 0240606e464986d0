"""The report of one run, as data. Pure values: `_render.py` makes text of them, `to_json` makes JSON."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from aerogel._launch import SCHEMA
from aerogel.compiler.render import report_to_dict
from aerogel.compiler.report import Decision, Report


@dataclass(frozen=True)
class Measurement:
    """The natural and the optimised form of one function, run alternately on the arguments of one real call.

    Attributes:
        arguments: the argument types, as "f32[64,128], i32[64]".
        status: "measured"; "unchanged" (nothing fired, so both are one program: not run); or "skipped".
        reason: why it was skipped; "" otherwise.
        natural_seconds: median over `repeats` calls; likewise `optimized_seconds`.
        natural_temp_bytes: memory that the compiled form needs besides arguments and results; None where the backend
            does not say. Likewise `optimized_temp_bytes`.
        difference: the largest difference of any result, over the largest absolute value of that result.
        differs_in: which result that is, its type, and that value; "" where nothing differs.
    """

    arguments: str
    status: str
    reason: str = ""
    natural_seconds: float | None = None
    optimized_seconds: float | None = None
    natural_temp_bytes: int | None = None
    optimized_temp_bytes: int | None = None
    difference: float | None = None
    differs_in: str = ""
    repeats: int = 0

    @property
    def time_ratio(self) -> float | None:
        """Optimised over natural time: below 1 is faster. 1 for one and the same program."""
        if self.status == "unchanged":
            return 1.0
        if self.natural_seconds is None or self.optimized_seconds is None:
            return None
        return self.optimized_seconds / self.natural_seconds


@dataclass(frozen=True)
class FunctionRow:
    """One compiled function: all that came from one place in the source.

    Attributes:
        name: the name that the user knows it by.
        where: where it is defined, as "train.py:41"; "" if unknown.
        called_from: the user's line that led to its first call, if a library defines it; else "".
        calls: how often it was called and ran.
        calls_inside: how often it was called while another function was traced, and became part of that one.
        traces: a report for each time that it was traced by itself.
        measurements: one per signature, with `--compare`.
    """

    name: str
    where: str
    called_from: str
    calls: int
    calls_inside: int
    traces: tuple[Report, ...]
    measurements: tuple[Measurement, ...] = ()

    @property
    def largest(self) -> Report | None:
        """The trace that moves most bytes: the one whose predicted savings are shown."""
        return max(self.traces, key=lambda report: report.before.bytes_moved, default=None)

    @property
    def decisions(self) -> tuple[tuple[Decision, int], ...]:
        """The decisions of all traces, each once, with how many traces or sites made it."""
        count: dict[tuple[Any, ...], int] = {}
        first: dict[tuple[Any, ...], Decision] = {}
        for decision in (d for report in self.traces for d in report.decisions):
            key = (decision.rule, decision.what, decision.where, decision.fired, decision.failed, decision.reason)
            count[key] = count.get(key, 0) + 1
            first.setdefault(key, decision)
        return tuple((first[key], count[key]) for key in first)

    @property
    def is_changed(self) -> bool:
        """Whether anything fired in any trace."""
        return any(report.fired for report in self.traces)


@dataclass(frozen=True)
class RunReport:
    """What `aerogel run` did.

    Attributes:
        command: the script and its arguments.
        backend, jax_version: "" if the script never imported JAX.
        functions: in the order in which they were first compiled or called.
        notes: sentences about the whole run.
    """

    command: str
    numerics: str
    compared: bool
    backend: str
    jax_version: str
    functions: tuple[FunctionRow, ...]
    notes: tuple[str, ...] = ()
    schema: int = field(default=SCHEMA)

    @property
    def shown(self) -> tuple[FunctionRow, ...]:
        """Functions that ran, or were traced, by themselves."""
        return tuple(row for row in self.functions if row.calls or row.traces)

    @property
    def only_inside(self) -> tuple[FunctionRow, ...]:
        """Functions that only became part of others."""
        return tuple(row for row in self.functions if row.calls_inside and not (row.calls or row.traces))

    @property
    def failed(self) -> tuple[Decision, ...]:
        """Passes that failed anywhere in the run."""
        return tuple(d for row in self.functions for d, _ in row.decisions if d.failed)


def to_dict(report: RunReport) -> dict[str, Any]:
    """The report in terms of JSON's types; `schema` changes when a reader of older ones would not understand it."""
    shallow = {f.name: getattr(report, f.name) for f in fields(report) if f.name not in ("functions", "notes")}
    return {
        "kind": "aerogel run",
        **shallow,
        "notes": list(report.notes),
        "functions": [row_to_dict(row) for row in report.functions],
    }


def row_to_dict(row: FunctionRow) -> dict[str, Any]:
    """One function in terms of JSON's types."""
    return {
        "name": row.name,
        "where": row.where,
        "called_from": row.called_from,
        "calls": row.calls,
        "calls_inside": row.calls_inside,
        "traces": [report_to_dict(report) for report in row.traces],
        "measurements": [
            {**{f.name: getattr(m, f.name) for f in fields(m)}, "time_ratio": m.time_ratio} for m in row.measurements
        ],
    }


def to_json(report: RunReport) -> str:
    """The report as JSON text, keys in a fixed order. A difference that is no number is written as a string."""
    return json.dumps(finite(to_dict(report)), indent=2) + "\n"


def finite(value: Any) -> Any:
    """`value` with inf and nan as strings: JSON has no such numbers."""
    match value:
        case dict():
            return {key: finite(inner) for key, inner in value.items()}
        case list():
            return [finite(inner) for inner in value]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case _:
            return value
