"""Claim: programs written with other libraries, unchanged, run no function more than 3 % slower than plain JAX does.

Short scripts as these libraries' users write them (jax-md, tinygp, evosax, jraph, ott, Haiku, rlax, Flax), each in a
process of its own under `aerogel run --compare`. Their packages are the group `bench-libraries` of pyproject.toml.
"""

from __future__ import annotations

from pathlib import Path

from ._compared import findings_of
from ._finding import Finding

SCRIPTS = sorted(Path(__file__).with_name("libraries").glob("*.py"))


def findings(quick: bool = False) -> list[Finding]:
    """Those of each script."""
    return [found for script in SCRIPTS[: 1 if quick else None] for found in findings_of(script)]
