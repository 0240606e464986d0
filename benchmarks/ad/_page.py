"""The AD table as a line for the terminal, and as the page `docs/reference/gradients.md`: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._timing import Quartiles
from ._measure import PLAIN, Result
from ._row import Row

INTRODUCTION = """\
# The AD table

Written by `make bench-ad`; do not edit. The functions stand in `benchmarks/ad`: those that Mooncake.jl measures itself
with (rows 1 to 11, float64), the Flux models of its issue 361 (12 to 17), loops (18 to 21) and a large gradient that
is computed again and again (22). Each is differentiated as it is written, under `jax.jit(jax.value_and_grad(f))`, under
`ag.jit(ag.value_and_grad(f))` and, where PyTorch is installed, by `torch.autograd` and by `torch.compile` (not for
loops: it unrolls them, and takes minutes to compile).

All forms run once per round, in changing order, in one process that is pinned to its cores. Ratios are medians of the
ratios inside the rounds; PyTorch stands for the faster one of its forms. *Target* is a ratio to plain JAX. *Of value*
is the time of value and gradient over that of the value alone, both in Aerogel, with the best published such ratio;
where plain JAX takes less than 30 us it is the time of a call, and is not judged. Memory is temporary memory in XLA's
plan. [Why some rows miss](../explanation/ad-table.md).
"""
HEAD = ("row", "", "plain JAX us", "of plain JAX", "target", "of PyTorch", "of value", "temp MB", "differs by", "")


def to_markdown(records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """The page, a table per number of cores."""
    return INTRODUCTION + "".join(_section(record, {row.name: row for row in rows}) for record in records)


def _section(record: Mapping[str, Any], rows: Mapping[str, Row]) -> str:
    machine, results = record["machine"], [from_json(each) for each in record["rows"]]
    met = sum(not r.missed for r in results)
    title = "One core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    where = f"{machine['processor']}, jax {machine['jax']}, commit {machine['commit']}"
    table = [HEAD, ["---"] * len(HEAD), *(cells(result, rows[result.name]) for result in results)]
    lines = ["| " + " | ".join(each) + " |" for each in table]
    return "\n".join(["", f"## {title}", "", f"{where}: {met} of {len(results)} rows are met.", "", *lines, ""])


def cells(result: Result, row: Row) -> list[str]:
    """What the table says of one row."""
    return [
        str(result.number),
        result.name,
        f"{result.seconds[PLAIN] * 1e6:.3g}",
        _ratio(result.over_plain),
        f"{row.time[0] / row.time[1]:.2f}",
        "-" if result.over_torch is None else _ratio(result.over_torch),
        _ratio(result.over_value) + ("" if row.published is None else f" ({row.published:g})"),
        " / ".join(f"{size / 1e6:.3g}" for size in result.bytes)
        + ("" if result.faults is None else f", {result.faults:.0f} page faults"),
        f"{result.difference:.0e}",
        "; ".join(result.missed) or "met",
    ]


def to_line(result: Result, row: Row) -> str:
    """A line for the terminal, with the times of all forms."""
    named = [f"{name} {cell}".strip() for name, cell in zip(HEAD[3:], cells(result, row)[3:], strict=True)]
    times = [f"{name} {seconds * 1e6:.4g} us" for name, seconds in result.seconds.items()]
    return " | ".join([f"{result.number} {result.name}", *times, *named])


def from_json(stored: Mapping[str, Any]) -> Result:
    """The result that was stored with `dataclasses.asdict`."""
    of_quartiles = {
        name: None if stored[name] is None else Quartiles(**stored[name])
        for name in ("over_plain", "over_torch", "over_value")
    }
    return Result(**{**stored, **of_quartiles, "bytes": tuple(stored["bytes"]), "missed": tuple(stored["missed"])})


def _ratio(quartiles: Quartiles) -> str:
    return f"{quartiles.median:.2f} [{quartiles.low:.2f}, {quartiles.high:.2f}]"
