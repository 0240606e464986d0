"""The collectives of compiled programs: what runs, how often, and how many bytes it moves."""

import math
import re
from collections import Counter
from typing import Any

KINDS = "all-reduce all-gather all-to-all reduce-scatter collective-permute collective-broadcast".split()
_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) .*->.*\{$")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = re.compile(
    r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)|branch_computations=\{([^}]*)\}"
)


def collectives(compiled: Any) -> Counter[str]:
    """How often each kind of collective runs in one call of a compiled program, and the bytes of their results.

    What stands in a loop counts once per step; where the number of steps is not known, as 1000. Every branch counts.
    """
    programs, entry = _programs(compiled.as_text())
    known: dict[str, Counter[str]] = {}
    return _of(entry, programs, known)


def _programs(text: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    entry, lines = "", list[str]()
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            lines = found.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        else:
            lines.append(line)
    return found, entry


def _of(name: str, programs: dict[str, list[str]], known: dict[str, Counter[str]]) -> Counter[str]:
    if name in known:
        return known[name]
    total: Counter[str] = Counter()
    for line in programs[name]:
        collective = _COLLECTIVE.search(line)
        if collective is not None:
            total[collective[2]] += 1
            total["bytes"] += sum(_bytes(*found.groups()) for found in _ARRAY.finditer(collective[1]))
        trips = _TRIPS.search(line)
        times = 1 if " while(" not in line else int(trips[1]) if trips else 1000
        for one, several in _CALLED.findall(line):
            for called in [one] if one else [each.strip().lstrip("%") for each in several.split(",")]:
                for kind, count in _of(called, programs, known).items():
                    total[kind] += times * count
    known[name] = total
    return total


def _bytes(dtype: str, bits: str | None, shape: str) -> int:
    return math.prod(int(n) for n in shape.split(",") if n) * (1 if dtype == "pred" else int(bits or 8) // 8)
