"""Claim: no function of the examples runs more than 3 % slower under `aerogel run` than under plain JAX.

Each example runs once in its own process under `aerogel run --compare`, which measures every compiled function in
both forms on the arguments of a real call. A function in which nothing fired is one program in both forms: ratio 1.
One that could not be measured misses the bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ._finding import Finding
from ._timing import Quartiles

ROOT = Path(__file__).parent.parent
BOUND = 1.03
SHORTEST_S = 50e-6  # below, a call is all dispatch, which `a_warm_call_costs_what_jit_costs` measures with due care
ARGUMENTS = {
    "ode_ensemble.py": ["--rho", "28"],
    "sunspots_lstm.py": ["--steps", "20"],
    "byte_language_model.py": ["--steps", "5"],
    "numpyro_regression.py": ["--warmup", "50", "--samples", "50"],
}


def compare(script: str) -> dict:
    """The report of `aerogel run --compare` on one example."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "aerogel", "run", "--quiet", "--compare", "--report", str(report)]
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        subprocess.run(
            [*command, str(ROOT / "examples" / script), *ARGUMENTS[script]],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(report.read_text())


def findings(quick: bool = False) -> list[Finding]:
    """A ratio per function and signature that was changed; one of 1 where nothing fired."""
    found = []
    for script in list(ARGUMENTS)[: 1 if quick else None]:
        measurements = [(f["name"], m) for f in compare(script)["functions"] for m in f["measurements"]]
        if not measurements:
            found.append(Finding(script, "optimised over natural", None, BOUND, "no compiled function was seen"))
        found += [finding(f"{script}: {name}({m['arguments']})", m) for name, m in measurements]
    return found


def finding(case: str, m: dict) -> Finding:
    """One measurement of the report, judged."""
    measure = "optimised over natural"
    if m["status"] == "skipped":
        return Finding(case, measure, None, BOUND, m["reason"])
    ratio = Quartiles(m["time_ratio"], m["time_ratio"], m["time_ratio"])
    if m["status"] == "unchanged":
        return Finding(case, measure, ratio, BOUND, "nothing fired: one and the same program")
    details = (
        f"{m['natural_seconds'] * 1e3:.3f} and {m['optimized_seconds'] * 1e3:.3f} ms, "
        f"{m['natural_temp_bytes']} and {m['optimized_temp_bytes']} bytes, "
        f"relative difference of the results {m['difference']}"
    )
    return Finding(case, measure, ratio, BOUND if m["natural_seconds"] >= SHORTEST_S else None, details)
