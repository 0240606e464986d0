"""Scripts under `aerogel run --compare`: a finding for each function that they compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ._finding import Finding
from ._timing import Quartiles

ROOT = Path(__file__).parent.parent
BOUND = 1.03
SHORTEST_S = 50e-6  # below, a call is all dispatch, which `a_warm_call_costs_what_jit_costs` measures with due care
MEASURE = "optimised over natural"


def findings_of(script: Path, arguments: Sequence[str] = ()) -> list[Finding]:
    """A ratio per function and signature that was changed; one of 1 where nothing fired. No function is a miss."""
    measured = [(f["name"], m) for f in _compare(script, arguments)["functions"] for m in f["measurements"]]
    found = [_finding(f"{script.name}: {name}({m['arguments']})", m) for name, m in measured]
    return found or [Finding(script.name, MEASURE, None, BOUND, "no compiled function was seen")]


def _compare(script: Path, arguments: Sequence[str]) -> dict:
    """The report of `aerogel run --compare` on one script."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "aerogel", "run", "--quiet", "--compare", "--report", str(report)]
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        subprocess.run(
            [*command, str(script), *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(report.read_text())


def _finding(case: str, m: dict) -> Finding:
    """One measurement of the report, judged."""
    if m["status"] == "skipped":
        return Finding(case, MEASURE, None, BOUND, m["reason"])
    ratio = Quartiles(m["time_ratio"], m["time_ratio"], m["time_ratio"])
    if m["status"] == "unchanged":
        return Finding(case, MEASURE, ratio, BOUND, "nothing fired: one and the same program")
    details = (
        f"{m['natural_seconds'] * 1e3:.3f} and {m['optimized_seconds'] * 1e3:.3f} ms, "
        f"{m['natural_temp_bytes']} and {m['optimized_temp_bytes']} bytes, "
        f"relative difference of the results {m['difference']}"
    )
    return Finding(case, MEASURE, ratio, BOUND if m["natural_seconds"] >= SHORTEST_S else None, details)
