"""Measure the AD table: `python -m benchmarks.ad [--cores N] [--rows N ...] [--quick]`.

Pins itself to the last N of its cores: the first one serves interrupts. Writes `benchmarks/results/ad-N.json` and, from
what is stored for one core and for two, `docs/reference/gradients.md`; with `--rows` only these rows of it. Exit status
1 when a row misses a target. `--quick` prints and stores nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "gradients.md"


def main() -> int:
    options = parse()
    # before anything counts the cores that it may use
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    os.environ["OMP_NUM_THREADS"] = str(options.cores)
    from ._measure import measure_row
    from ._page import to_line
    from ._rows import ROWS

    missed = 0
    for row in ROWS:
        if options.rows and row.number not in options.rows:
            continue
        result = measure_row(row, quick=options.quick, cores=options.cores)
        missed += bool(result.missed)
        print(to_line(result, row), flush=True)
        if not options.quick:
            store(asdict(result), options.cores)
    print(f"{missed} rows miss a target" if missed else "all targets are met")
    return 1 if missed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.ad", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cores", type=int, default=1, help="how many to run on (default: 1)")
    parser.add_argument("--rows", type=int, nargs="*", default=[], help="numbers of rows (default: all)")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, proves little")
    return parser.parse_args()


def store(result: dict[str, Any], cores: int) -> None:
    """Put a result in the place of the last one of its row, and write the page anew."""
    from .._timing import describe_machine
    from ._page import to_markdown
    from ._rows import ROWS

    path = stored(cores)
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    by_name = {row["name"]: row for row in [*known, result]}
    rows = [by_name[row.name] for row in ROWS if row.name in by_name]
    path.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1) + "\n")
    records = [json.loads(stored(n).read_text()) for n in (1, 2) if stored(n).exists()]
    PAGE.write_text(to_markdown(records, ROWS))


def stored(cores: int) -> Path:
    return ROOT / "benchmarks" / "results" / f"ad-{cores}.json"


if __name__ == "__main__":
    sys.exit(main())
