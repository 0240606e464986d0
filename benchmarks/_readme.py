"""The table in the README: one line a claim, from what `make bench` stored. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ._run import Row
from ._table import from_record

# The ratio of a few bytes to fewer says nothing of what fits.
LEAST_BYTES = 1_000_000
BEGIN, END = "<!-- begin: benchmarks, from `make bench`; not written by hand -->", "<!-- end: benchmarks -->"


def with_summary(readme: str, records: Sequence[Mapping[str, Any]]) -> str:
    """`readme` with the table of all records between its two marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no place for the table: {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{summary(records)}{END}{after}"


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """A line a claim: medians over its rows, and how many rows keep all their bounds."""
    lines = [
        "| claim | time of plain JAX's | memory of plain JAX's | time of the best hand form's | rows that pass |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        results = from_record(record)
        rows = [r for r in results if isinstance(r, Row)]
        passed = f"{sum(not r.missed for r in results)} of {len(results)}"
        sentence = record["doc"].strip().splitlines()[0].removeprefix("Claim: ").rstrip(".")
        cells = [_of_natural(rows), _memory(rows), _of_hand(rows), passed]
        lines.append("| " + " | ".join([sentence, *cells]) + " |")
    machine = records[-1]["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, jax {machine['jax']}"
    return (
        "\n".join(lines)
        + f"\n\nMedians over a claim's rows, best and worst in brackets, less than 1 MB counts as that; {where}.\n"
    )


def _of_natural(rows: Sequence[Row]) -> str:
    return _spread([1 / r.natural_over_optimised.median for r in rows if r.natural_over_optimised is not None])


def _memory(rows: Sequence[Row]) -> str:
    pairs = [(r.optimised_bytes, r.natural_bytes) for r in rows if r.optimised_bytes is not None and r.natural_bytes]
    return _spread([max(optimised, LEAST_BYTES) / max(natural, LEAST_BYTES) for optimised, natural in pairs])


def _of_hand(rows: Sequence[Row]) -> str:
    return _spread([r.optimised_over_hand.median for r in rows if r.optimised_over_hand is not None])


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    return f"{median(ratios):.2g} [{min(ratios):.2g}, {max(ratios):.2g}]"
