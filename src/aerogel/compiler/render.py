"""A report of one function as text, as JSON's types, and as a piece of HTML. Pure functions of the report."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `report` itself imports this file, to print its values
    from .report import Decision, Report

RED, GREEN, DIM, BOLD, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
MARKS = {"fired": "+", "refused": "-", "failed": "!"}
COLOURS = {"fired": GREEN, "refused": DIM, "failed": RED}


def report_to_text(report: Report, width: int = 100, color: bool = False) -> str:
    """Lines of at most `width` characters: what was costed, what fired, what was refused and why.

    `+` stands before what fired, `-` before what was refused, `!` (red) before a pass that failed.
    """
    place = f"  {report.where}" if report.where else ""
    lines = [paint(report.name, BOLD, color) + place, *cost_lines(report)]
    for decision, count in merged(report.decisions):
        kind = kind_of(decision)
        text = f"{MARKS[kind]} {sentence(decision)}" + (f"  ({count} times)" if count > 1 else "")
        wrapped = textwrap.wrap(text, max(width - 2, 20), subsequent_indent="  ", break_long_words=False)
        lines += [paint("  " + line, COLOURS[kind], color) for line in wrapped]
    if not report.decisions:
        lines.append("  nothing to rewrite was found")
    return "\n".join(lines)


def cost_lines(report: Report) -> list[str]:
    """Predicted costs before and after, one line each; one line in all when nothing changed."""
    before, after = report.before, report.after
    equations = "equation" if report.equations == 1 else "equations"
    head = f"  {report.equations} {equations}, optimised in {report.seconds * 1e3:.1f} ms"
    if not report.fired:
        return [f"{head}: {count(before.flops)}flop, {count(before.bytes_moved)}B moved, unchanged"]
    rows = [
        ("arithmetic", before.flops, after.flops, "flop"),
        ("moved", before.bytes_moved, after.bytes_moved, "B"),
        ("peak memory", before.peak_bytes, after.peak_bytes, "B"),
    ]
    return [head] + [
        f"  {label:<12}{count(old) + unit:>12} -> {count(new) + unit:<12}{change(old, new)}".rstrip()
        for label, old, new, unit in rows
    ]


def report_to_dict(report: Report) -> dict[str, Any]:
    """The report in terms of JSON's types, with every field of the data."""
    found = asdict(report)
    return {**found, "decisions": [dict(d) for d in found["decisions"]]}


def report_to_html(report: Report) -> str:
    """One self-contained piece of HTML for a notebook: no scripts, nothing loaded, all text escaped."""
    cell = '<td style="text-align:left;vertical-align:top;padding:2px 12px 2px 0'
    rows = []
    for decision, times in merged(report.decisions):
        kind = kind_of(decision)
        style = {"fired": "", "refused": ";opacity:0.65", "failed": ";color:#c00;font-weight:bold"}[kind]
        cells = [kind if times == 1 else f"{kind}, {times} times", decision.where, decision.rule, decision.what]
        cells += [decision.reason, savings(decision)]
        rows.append("<tr>" + "".join(f'{cell}{style}">{escape(text)}</td>' for text in cells) + "</tr>")
    head = "".join(f'{cell}"><b>{t}</b></td>' for t in ("", "line", "rule", "what", "why", "saved"))
    title = f"<b>{escape(report.name)}</b> <code>{escape(report.where)}</code>"
    costs = f"<pre>{escape(chr(10).join(line.strip() for line in cost_lines(report)))}</pre>"
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else "<p>nothing to rewrite was found</p>"
    return f"<div>{title}{costs}{table}</div>"


def merged(decisions: tuple[Decision, ...]) -> list[tuple[Decision, int]]:
    """Each decision once, with how often it was made; what fired first, failures before refusals."""
    counts: dict[Decision, int] = {}
    for decision in decisions:
        counts[decision] = counts.get(decision, 0) + 1
    order = {"failed": 0, "fired": 1, "refused": 2}
    return sorted(counts.items(), key=lambda item: order[kind_of(item[0])])


def kind_of(decision: Decision) -> str:
    """One of "fired", "refused" or "failed"."""
    return "failed" if decision.failed else "fired" if decision.fired else "refused"


def sentence(decision: Decision) -> str:
    """One decision as a line: where, which rule, what, why, and what it saves."""
    place = f"{decision.where}: " if decision.where else ""
    verb = {"fired": "", "refused": " refused", "failed": " FAILED"}[kind_of(decision)]
    saved = savings(decision)
    parts = [f"{place}{decision.rule}{verb}: {decision.what}", decision.reason, f"saves {saved}" if saved else ""]
    return "; ".join(part for part in parts if part)


def savings(decision: Decision) -> str:
    """As "1.2 Mflop, 71.9 MB moved, 72.0 MB peak"; what is not saved is left out."""
    pairs = [
        (decision.flops_saved, "flop"),
        (decision.bytes_saved, "B moved"),
        (decision.peak_bytes_saved, "B peak"),
    ]
    return ", ".join(f"{count(number)}{unit}" for number, unit in pairs if decision.fired and number)


def count(number: float) -> str:
    """A number with three digits and a prefix of the SI, ready for a unit: "71.9 M", "12 ", "-3.00 k"."""
    size, prefix = float(number), ""
    for prefix in ("", "k", "M", "G", "T", "P"):  # noqa: B007  (the prefix that fits is the result)
        if abs(size) < 999.5:
            break
        size /= 1000
    shown = f"{size:.0f}" if not prefix or abs(size) >= 99.95 else f"{size:.1f}"
    return f"{shown} {prefix}"


def change(before: float, after: float) -> str:
    """As "-71 %"; "" for no change that such a number would show, "new" where there was nothing."""
    if before == after:
        return ""
    if not before:
        return "new"
    percent = 100 * (after - before) / before
    if abs(percent) < 0.5:
        return ""
    return f"{percent:+.0f} %" if abs(percent) < 99.5 else f"{percent:+.1f} %"


def paint(text: str, code: str, color: bool) -> str:
    """`text` in a colour, if colours are wanted."""
    return f"{code}{text}{PLAIN}" if color else text
