"""Claim: no function of the examples runs more than 3 % slower under `aerogel run` than under plain JAX.

Each example runs once in its own process under `aerogel run --compare`, which measures every compiled function in
both forms on the arguments of a real call. A function in which nothing fired is one program in both forms: ratio 1.
One that could not be measured misses the bound.
"""

from __future__ import annotations

from ._compared import ROOT, findings_of
from ._finding import Finding

ARGUMENTS = {
    "ode_ensemble.py": ["--rho", "28"],
    "sunspots_lstm.py": ["--steps", "20"],
    "byte_language_model.py": ["--steps", "5"],
    "numpyro_regression.py": ["--warmup", "50", "--samples", "50"],
}


def findings(quick: bool = False) -> list[Finding]:
    """Those of each example."""
    scripts = list(ARGUMENTS)[: 1 if quick else None]
    return [found for script in scripts for found in findings_of(ROOT / "examples" / script, ARGUMENTS[script])]
