"""Cases of the claims at sizes that nobody tuned on: `python -m benchmarks._other_sizes SEED SECONDS`.

Draws a claim, a case and a factor, and makes every axis of more than eight entries of every argument longer or shorter
by it. A line for each that still runs: what plain JAX takes and what we do, in microseconds, with the memory of both in
megabytes; `SLOWER` where two measurements agree on more than `SLOWER_BY`. Such a line is a hint: bisect what it fires.
"""

from __future__ import annotations

import importlib
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag

from ._case import Case
from ._claims import CLAIMS
from ._timing import measure

FACTORS = (0.1, 0.25, 0.5, 1.7)
SHORT_AXIS = 8  # a longer one changes with the factor: three coordinates stay three
MOST_ENTRIES = 30_000_000
SLOWER_BY = 1.1


def resized(x, factor: float):
    """An argument with its long axes as many times as long; places in an array stay in it."""
    if not hasattr(x, "shape") or not x.shape or jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    shape = tuple(max(2, round(n * factor)) if n > SHORT_AXIS else n for n in x.shape)
    y = np.resize(np.asarray(x), shape)
    return jnp.asarray((y * min(1.0, factor)).astype(y.dtype) if y.dtype.kind in "iu" else y)


def drawn(rng: random.Random) -> tuple[str, Case, float] | None:
    """A claim's name, one of its cases and a factor; None where the claim has other things than cases."""
    name = rng.choice(CLAIMS)
    cases = [c for c in getattr(importlib.import_module(f"benchmarks.{name}"), "CASES", ()) if isinstance(c, Case)]
    return (name, rng.choice(cases), rng.choice(FACTORS)) if cases else None


def runs(f, args) -> bool:
    """Whether a program takes arguments of these sizes."""
    try:
        jax.eval_shape(f, *args)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return False
    return True


def line(f, args) -> str:
    """What plain JAX takes and what we do."""
    forms, ratios = {"natural": f, "optimised": ag.optimize(f)}, []
    for _ in range(2):
        found = measure(forms, args, min_rounds=7, budget_s=0.3, limit_s=10.0)
        ratios.append(found.ratio("optimised", "natural").median)
        if ratios[-1] <= SLOWER_BY:
            break
    took = [1e6 * found.time(name).median for name in forms]
    held = [found.temp_bytes[name] / 1e6 for name in forms]
    sign = " | SLOWER" if min(ratios) > SLOWER_BY else ""
    return f"{took[0]:.0f} {took[1]:.0f} us, {min(ratios):.2f} | {held[0]:.2f} {held[1]:.2f} MB{sign}"


def main(seed: int, seconds: float) -> None:
    """Cases until the time is over."""
    rng, start = random.Random(seed), time.monotonic()
    while time.monotonic() - start < seconds:
        found = drawn(rng)
        if found is None:
            continue
        name, case, factor = found
        args = jax.tree.map(lambda x, by=factor: resized(x, by), case.args())
        if sum(getattr(x, "size", 0) for x in jax.tree.leaves(args)) > MOST_ENTRIES:
            continue
        for mode, (f, _, _) in case.modes().items():
            if runs(f, args):
                print(f"{name} | {case.name} | x {factor} | {mode} | {line(f, args)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
