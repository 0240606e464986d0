"""What became of each test: the record that `plugin.py` writes, read back and compared."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Modes in which programs are kept in normal form also where nothing fired.
FORCED = ("forced", "into-loops", "out-of-loops")

# The worst report of a test is its outcome: a subtest may fail while its test goes on.
_RANK = {"skipped": 0, "passed": 1, "started": 2, "failed": 3, "crashed": 4, "hung": 5}


@dataclass(frozen=True)
class Result:
    """One test's outcome; `started` means that the process ended in it. `error` is the end of the traceback."""

    test: str
    outcome: str
    seconds: float = 0.0
    error: str = ""

    @property
    def is_bad(self) -> bool:
        return self.outcome in ("failed", "crashed", "hung")

    @property
    def headline(self) -> str:
        """The line that states the error, with numbers and quoted names blanked, so that like errors group."""
        stated = [line[1:].strip() for line in self.error.splitlines() if re.match(r"E\s+\S", line)]
        text = next((line for line in stated if re.match(r"[\w.]*(Error|Exception|Warning)\b", line)), "")
        text = text or (stated[0] if stated else self.outcome)
        return re.sub(r"0x[0-9a-f]+|\d+", "#", re.sub(r"'[^']*'", "'..'", text))[:120]


def read(path: Path) -> dict[str, Result]:
    """Every test of a record with its worst outcome."""
    results: dict[str, Result] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        fields = json.loads(line)
        new = Result(**fields)
        old = results.get(new.test)
        if old is None or old.outcome == "started" or _RANK[new.outcome] > _RANK[old.outcome]:
            results[new.test] = new
    return results


def append(path: Path, result: Result) -> None:
    with path.open("a") as file:
        file.write(json.dumps(vars(result)) + "\n")


@dataclass(frozen=True)
class Difference:
    """The tests of one file set on both sides."""

    passed: int
    regressed: tuple[Result, ...]  # not passed replaced, passed as they are
    bad_either_way: int

    @staticmethod
    def between(plain: dict[str, Result], replaced: dict[str, Result]) -> Difference:
        """Only what did not pass replaced need stand in `plain`."""
        passing = {test for test, result in plain.items() if result.outcome == "passed"}
        suspects = [result for _, result in sorted(replaced.items()) if result.outcome != "passed"]
        return Difference(
            passed=len(replaced) - len(suspects),
            regressed=tuple(result for result in suspects if result.test in passing),
            bad_either_way=sum(result.is_bad and result.test not in passing for result in suspects),
        )


def by_error(results: Iterable[Result]) -> list[tuple[str, list[Result]]]:
    """Groups of like errors, the largest first."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.headline].append(result)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def read_expected(path: Path, mode: str) -> dict[str, str]:
    """Test name -> reason, from lines `name  # reason`; one that begins with `forced:` holds where we force.

    Raises:
        ValueError: a line gives no reason.
    """
    expected: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        test, mark, reason = line.partition("  # ")
        if not mark or not reason.strip():
            raise ValueError(f"{path.name}:{number}: give a reason after two spaces and a #: {line!r}")
        if mode in FORCED or not reason.startswith("forced:"):
            expected[test.strip()] = reason.strip()
    return expected
