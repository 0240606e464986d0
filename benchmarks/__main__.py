"""Measure claims and write their results: `python -m benchmarks [names] [--quick] [--hand-only]`.

Writes `benchmarks/results/<claim>.json` and, from all stored results, `docs/reference/benchmarks.md` and the table in
the README. Exit status 1 when a bound is missed. `--quick`, `--hand-only` and `--case` print and store nothing: their
numbers are too few to keep.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import aerogel as ag

from ._claims import CLAIMS
from ._readme import with_summary
from ._run import run_case
from ._table import Result, to_line, to_markdown, to_record
from ._timing import describe_machine

HERE = Path(__file__).parent
RESULTS = HERE / "results"
README = HERE.parent / "README.md"
PAGE = HERE.parent / "docs" / "reference" / "benchmarks.md"


def main() -> int:
    options = parse()
    if options.list:
        print(*CLAIMS, sep="\n")
        return 0
    missed = 0
    for name in options.names or CLAIMS:
        claim = importlib.import_module(f".{name}", __package__)
        print(f"# {name}", flush=True)
        results = measure_claim(claim, options)
        missed += sum(bool(result.missed) for result in results)
        if not (options.quick or options.hand_only or options.case):
            store(name, claim.__doc__ or "", results)
    print(f"{missed} rows miss a bound" if missed else "all bounds hold")
    return 1 if missed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="claim", help="names of claims (default: all)")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, proves nothing")
    parser.add_argument("--hand-only", action="store_true", help="natural against expert forms, without Aerogel")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the names of the claims")
    options = parser.parse_args()
    for name in options.names:
        if name not in CLAIMS:
            parser.error(f"no claim is called {name!r}; `--list` names them")
    return options


def measure_claim(claim, options: argparse.Namespace) -> list[Result]:
    """All results of one claim, each printed as soon as it is there."""
    if not hasattr(claim, "CASES"):
        found = [] if options.hand_only else [f for f in claim.findings(options.quick) if options.case in f.case]
        for finding in found:
            print(to_line(finding), flush=True)
        return found
    optimise = None if options.hand_only else ag.optimize
    results: list[Result] = []
    for case in claim.CASES:
        if options.case in case.name:
            for row in run_case(case, optimise, quick=options.quick):
                print(to_line(row), flush=True)
                results.append(row)
    return results


def store(name: str, doc: str, results: list[Result]) -> None:
    """Write the results of one claim, and the page anew from all that is stored."""
    RESULTS.mkdir(exist_ok=True)
    record = to_record(name, doc, describe_machine(), results)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    stored = [RESULTS / f"{claim}.json" for claim in CLAIMS]
    records = [json.loads(path.read_text()) for path in stored if path.exists()]
    PAGE.write_text(to_markdown(records))
    README.write_text(with_summary(README.read_text(), records))


if __name__ == "__main__":
    sys.exit(main())
