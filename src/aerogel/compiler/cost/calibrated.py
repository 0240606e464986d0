"""Rates of this very machine, measured once and kept in the user's cache directory."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

MEASURED = (
    "bytes_per_second",
    "cache_bytes_per_second",
    "flops_per_second",
    "seconds_per_loop_step",
    "seconds_per_small_kernel",
    "seconds_to_hand_over",
)
FARTHEST = 10.0  # a rate this much off the table is a fault of the measurement


def cache_folder() -> Path:
    """Where Aerogel keeps what it measured: $AEROGEL_CACHE, or the folder for that of the operating system."""
    given = os.environ.get("AEROGEL_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aerogel"


def calibration_file(platform: str) -> Path:
    """The file of one platform: another one for another device, number of cores, or version of JAX."""
    kind = jax.local_devices(backend=platform)[0].device_kind
    said = repr((platform, kind, os.cpu_count(), jax.__version__))
    return cache_folder() / f"machine-{platform}-{hashlib.sha256(said.encode()).hexdigest()[:12]}.json"


def stored_rates(platform: str, known: Any) -> dict[str, float]:
    """What was measured on this machine; nothing for a platform that is not here."""
    if platform not in {device.platform for device in jax.local_devices()}:
        return {}
    return read(calibration_file(platform), known)


def read(path: Path, known: Any) -> dict[str, float]:
    """The rates in a file; none if there is no such file, or it holds something else. `known` is the table."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {} if not isinstance(stored, dict) else plausible(stored, known)


def plausible(rates: Mapping[str, Any], known: Any) -> dict[str, float]:
    """Those rates that are numbers not too far from the table's."""
    kept = {}
    for name in MEASURED:
        value, usual = rates.get(name), getattr(known, name)
        if isinstance(value, int | float) and usual / FARTHEST <= value <= usual * FARTHEST:
            kept[name] = float(value)
    return kept


def write(path: Path, rates: Mapping[str, Any]) -> None:
    """Stores what was measured. Others see the old file or the new one: it is written apart, and moved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as part:
        json.dump(dict(rates), part, indent=1)
    os.replace(part.name, path)


def forget(path: Path) -> bool:
    """Removes what was stored; whether there was something."""
    there = path.exists()
    path.unlink(missing_ok=True)
    return there
