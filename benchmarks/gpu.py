"""Compare plain and optimised programs of all claims on the device that JAX finds: `python -m benchmarks.gpu OUT`.

Meant for a GPU that is lent for minutes: several processes compile at the same time, then all programs are timed, one
after the other. `OUT/gpu.json` gets the rows. What the optimiser leaves as it is there is not compiled.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag
from aerogel.compiler.default import DEFAULT_PASSES

from ._case import Case
from ._claims import CLAIMS
from ._elsewhere import UnderFlags
from ._timing import code_of

ROUNDS = 7
LEAST_SAMPLE_S, LONGEST_S = 4e-3, 1.5
TOO_LARGE = "formulas_over_all_pairs_of_65536_fit_in_a_gigabyte"  # plain JAX takes 17 GB
DEFAULT = ("gpu_programs", *(name for name in CLAIMS if name != TOO_LARGE))


def without(name: str, f: Callable) -> Callable:
    """`f`, optimised without a pass or rule."""
    rules = ag.rules.default
    left = [one for one in rules if one.name == name]
    passes = tuple(one for one in DEFAULT_PASSES if one.name != name)
    return ag.optimize(f, rules=rules - left[0] if left else rules, passes=passes)


def programs(claims: Sequence[str]) -> Iterator[tuple[str, Case, str]]:
    """Module, case and mode of each program."""
    for name in claims:
        try:
            module = importlib.import_module(f".{name}" if name in DEFAULT else name, __package__)
        except ModuleNotFoundError as error:  # a peer that the lent machine has not
            print(f"{name} is left out: {error}")
            continue
        for case in getattr(module, "CASES", ()):
            for mode in case.modes():
                yield name, case, mode


def fires(f: Callable, args: tuple) -> list[str]:
    """The passes and rules that change a program."""
    return sorted({decision.rule for decision in ag.explain(f)(*args).fired})


def compiled(f: Callable, args: tuple) -> jax.stages.Compiled:
    return jax.jit(lambda *a: f(*a)).lower(*args).compile()


def difference(got: object, want: object) -> float:
    """The largest distance of an output, of the norm of what it should be (of integers, the share that differs)."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            wide = complex if jnp.issubdtype(x.dtype, jnp.complexfloating) else float
            a, b = np.asarray(x, wide), np.asarray(y, wide)
            same = np.isfinite(a) == np.isfinite(b)
            finite = np.isfinite(a) & np.isfinite(b)
            far = np.linalg.norm((a - b)[finite]) / (np.linalg.norm(b[finite]) + 1e-30)
            worst = max(worst, float(far) if same.all() else float("inf"))
        elif not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            worst = max(worst, float(np.mean(np.asarray(x) != np.asarray(y))))
    return worst


def prepared(found: tuple[str, Case, str], each: bool) -> tuple[dict, dict[str, jax.stages.Compiled], tuple] | None:
    """The row of a program, its compiled forms and its arguments; None where nothing fires.

    Ratios are to the first form; with `each`, there is one without each pass and rule that fires, and those by hand.
    """
    name, case, mode = found
    f, row = case.modes()[mode][0], {"claim": name, "case": case.name, "mode": mode}
    args = case.args()
    row["fired"] = fires(f, args)
    if not row["fired"]:
        return None
    calls, first = {}, None
    forms = {"plain": f, "optimised": ag.optimize(f)}
    if each:
        forms |= {f"without {name}": without(name, f) for name in row["fired"]}
        forms |= {f"by hand: {name}": g for name, g in case.modes()[mode][1].items() if not isinstance(g, UnderFlags)}
    for form, g in forms.items():
        start = time.perf_counter()
        try:
            calls[form] = compiled(g, args)
            out = jax.block_until_ready(calls[form](*args))
        except Exception as error:  # noqa: BLE001 - out of memory, say: the row shows it, the others go on
            calls.pop(form, None)
            row[form] = {"error": repr(error)[:300]}
            continue
        first = out if first is None else first
        memory = calls[form].memory_analysis().temp_size_in_bytes
        row[form] = {"compile": time.perf_counter() - start, "bytes": memory, "difference": difference(out, first)}
    texts = {form: code_of(call.as_text()) for form, call in calls.items()}
    plain = texts.get("plain")
    return row, {form: call for form, call in calls.items() if form == "plain" or texts[form] != plain}, args


def time_row(row: dict, calls: dict[str, jax.stages.Compiled], args: tuple) -> None:
    """Adds microseconds a call, of many calls that are waited for together, and the ratio to plain JAX."""

    def sample(form: str, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            out = calls[form](*args)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / count

    count = {form: max(1, min(100, int(LEAST_SAMPLE_S / sample(form, 2)))) for form in calls}
    seconds: dict[str, list[float]] = {form: [] for form in calls}
    for k in range(ROUNDS):
        for form in list(calls)[:: 1 if k % 2 else -1]:
            seconds[form].append(sample(form, count[form]))
        if sum(map(sum, seconds.values())) > LONGEST_S:
            break
    for form, each in seconds.items():
        row[form]["us"] = 1e6 * statistics.median(each)
        row[form]["ratio"] = statistics.median(a / b for a, b in zip(each, seconds["plain"], strict=True))


def work(k: int, workers: int, claims: Sequence[str], out: Path, until: float, each: bool) -> None:
    """One process: compiles its share until a time, waits for the others, and times it by turns."""
    rows, waiting = [], []
    for found in list(programs(claims))[k::workers]:
        if time.time() > until:
            break
        try:
            ready = prepared(found, each)
        except Exception as error:  # noqa: BLE001 - device time is short: the row says it, the others go on
            rows.append(
                {"claim": found[0], "case": found[1].name, "mode": found[2], "optimised": {"error": repr(error)[:300]}}
            )
            continue
        if ready is not None:
            rows.append(ready[0])
            waiting.append(ready)
    (out / f"ready-{k}").touch()
    while not (out / "go").exists():
        time.sleep(0.1)
    with (out / "turn").open("w") as turn:
        for row, calls, args in waiting:
            if len(calls) > 1 and "plain" in calls:
                fcntl.flock(turn, fcntl.LOCK_EX)
                time_row(row, calls, args)
                fcntl.flock(turn, fcntl.LOCK_UN)
                (out / f"rows-{k}.json").write_text(json.dumps(rows))
    (out / f"rows-{k}.json").write_text(json.dumps(rows))
    os._exit(0)  # tearing CUDA down takes seconds


def measure(workers: int, claims: Sequence[str], out: Path, seconds: float, each: bool) -> None:
    """All of it: `OUT/gpu.json`."""
    out.mkdir(parents=True, exist_ok=True)
    for stale in (*out.glob("ready-*"), *out.glob("rows-*"), out / "go"):
        stale.unlink(missing_ok=True)
    until = time.time() + seconds
    share = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / workers:.3f}"}
    command = [sys.executable, "-m", "benchmarks.gpu", str(out), *claims, f"--workers={workers}", f"--until={until}"]
    command += ["--each"] if each else []
    processes = [subprocess.Popen([*command, "--worker", str(k)], env=os.environ | share) for k in range(workers)]
    while len(list(out.glob("ready-*"))) < sum(p.poll() is None for p in processes) and time.time() < until + 30:
        time.sleep(0.2)
    (out / "go").touch()
    for process in processes:
        process.wait()
    rows = [row for part in sorted(out.glob("rows-*.json")) for row in json.loads(part.read_text())]
    (out / "gpu.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(rows)} programs; slower than 1.03: {sum(row['optimised'].get('ratio', 1) > 1.03 for row in rows)}")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder for the rows")
    parser.add_argument(
        "claims", nargs="*", default=DEFAULT, help="whose programs (default: all); or modules with CASES"
    )
    parser.add_argument("--workers", type=int, default=8, help="processes that compile (default: 8)")
    parser.add_argument("--seconds", type=float, default=600, help="no program is compiled after this (default: 600)")
    parser.add_argument("--each", action="store_true", help="without each pass and rule that fires, and by hand, too")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is None:
        measure(options.workers, options.claims, options.out, options.seconds, options.each)
    else:
        work(options.worker, options.workers, options.claims, options.out, options.until, options.each)


if __name__ == "__main__":
    main()
