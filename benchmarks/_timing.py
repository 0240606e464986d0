"""The one way this repository times anything.

`measure` compiles every form first, then runs them alternately in one process and blocks on each result. A shared
machine makes single times worthless, so the unit is the *round*: each form once, in an order that is drawn anew. A
ratio is the median over rounds of the ratio inside one round (a paired ratio), with its quartiles. Temp memory comes
from XLA's own plan and is exact.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from ._elsewhere import UnderFlags

MIN_ROUNDS = 20
SHORTEST_SAMPLE_S = (
    2e-3  # shorter programs are called several times per sample: the clock and the dispatch are noisy below
)


@dataclass(frozen=True)
class Quartiles:
    """Lower quartile, median and upper quartile of a sample."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, sample: np.ndarray) -> Quartiles:
        low, median, high = np.percentile(sample, (25, 50, 75))
        return cls(float(low), float(median), float(high))


@dataclass(frozen=True)
class Measured:
    """What one measurement found; `seconds[name]` has an entry per round, the same round at the same index."""

    seconds: Mapping[str, np.ndarray]
    temp_bytes: Mapping[str, int]
    compile_seconds: Mapping[str, float]
    outputs: Mapping[str, object]
    code: Mapping[str, str]

    def time(self, name: str) -> Quartiles:
        """Seconds per call."""
        return Quartiles.of(self.seconds[name])

    def ratio(self, numerator: str, denominator: str) -> Quartiles:
        """Quartiles of the paired ratios of two forms' times: 1.2 means that `numerator` takes 20 % longer."""
        return Quartiles.of(self.seconds[numerator] / self.seconds[denominator])


def measure(
    forms: Mapping[str, Callable | UnderFlags],
    args: tuple,
    *,
    min_rounds: int = MIN_ROUNDS,
    max_rounds: int = 200,
    budget_s: float = 3.0,
    limit_s: float = 60.0,
) -> Measured:
    """Time and temp memory of every form of one program under `jax.jit`, on the same arguments.

    Args:
        forms: functions of `args`, by name. Each is compiled here, so pass them without `jit`.
        min_rounds: rounds that are run whatever they cost, short of `limit_s`.
        budget_s: rounds beyond `min_rounds` are run until this much time is spent on them all.
        limit_s: no round starts after this much time; fewer rounds than `min_rounds` then show in `len(seconds[name])`.
    """
    compiled, compile_seconds, outputs, calls = {}, {}, {}, {}
    for name, form in forms.items():
        start = time.perf_counter()
        if isinstance(form, UnderFlags):
            compiled[name] = form.compile()
        else:
            # a fresh closure, so that two forms which are one object do not share a jit cache entry
            compiled[name] = jax.jit(lambda *a, form=form: form(*a)).lower(*args).compile()
        compile_seconds[name] = time.perf_counter() - start
        outputs[name] = jax.block_until_ready(compiled[name](*args))
        calls[name] = functools.partial(compiled[name], *args)
    return Measured(
        alternate(calls, min_rounds=min_rounds, max_rounds=max_rounds, budget_s=budget_s, limit_s=limit_s),
        {name: c.memory_analysis().temp_size_in_bytes for name, c in compiled.items()},
        compile_seconds,
        outputs,
        {name: code_of(c.as_text()) for name, c in compiled.items()},
    )


def alternate(
    calls: Mapping[str, Callable[[], object]],
    *,
    min_rounds: int = MIN_ROUNDS,
    max_rounds: int = 200,
    budget_s: float = 3.0,
    limit_s: float = 60.0,
) -> dict[str, np.ndarray]:
    """Seconds per call of each, by round, the wait for its result included. Each has been called before.

    Args:
        calls: what to call, by name.
        min_rounds: as for `measure`, as are all that follow.
    """
    # The first call of all is slow: whoever makes it would be called fewer times per sample, each time cold.
    shortest = {name: min(time_calls(f, (), 1) for _ in range(3)) for name, f in calls.items()}
    repeats = {name: max(1, int(SHORTEST_SAMPLE_S / max(each, 1e-7))) for name, each in shortest.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order, drawn = list(calls), np.random.default_rng(0)
    begin = time.perf_counter()
    for round_ in range(max_rounds):
        spent = time.perf_counter() - begin
        if spent > limit_s or (round_ >= min_rounds and spent > budget_s):
            break
        # Who runs after whom matters: caches, freed pages, and PyTorch's threads, which spin for milliseconds after a
        # call. Were the order turned only, one form would always run behind them.
        for name in drawn.permutation(order).tolist():
            seconds[name].append(time_calls(calls[name], (), repeats[name]))
    return {name: np.array(each) for name, each in seconds.items()}


def code_of(text: str) -> str:
    """The text of a compiled program without what does not run: names, source lines. Equal texts are one program."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    text = "\n".join(line for line in text.splitlines() if line.startswith(("%", " ", "}", "ENTRY")))
    names: dict[str, str] = {}
    return re.sub(r"%[\w.\-]+", lambda found: names.setdefault(found[0], f"%{len(names)}"), text)


def time_calls(f: Callable, args: tuple, calls: int) -> float:
    """Seconds per call of `f(*args)`, over `calls` calls that are each waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(f(*args))
    return (time.perf_counter() - start) / calls


def largest_difference(a: object, b: object) -> float:
    """Largest difference of two results' leaves, relative to the largest magnitude in the leaf of `a`."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if x.size:
            x, y = x.astype(np.float64), y.astype(np.float64)
            worst = max(worst, float(np.max(np.abs(x - y)) / (np.max(np.abs(x)) + 1e-30)))
    return worst


def describe_args(args: tuple) -> str:
    """Types of the arguments' leaves, as `f32[16,1000000], ...` (a program's dtypes and shapes, for the record)."""
    return ", ".join(str(jax.typeof(leaf)) for leaf in jax.tree.leaves(args))


def describe_machine() -> dict[str, str | int]:
    """What a ratio depends on: versions, device, cores, commit."""
    return {
        "jax": jax.__version__,
        "jaxlib": jax.lib.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "platform": jax.default_backend(),
        "processor": _processor(),
        "cores": len(_affinity()),
        "commit": _commit(),
    }


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    """Short commit of the checkout this file lies in, with `+` when files differ from it, or `unknown`."""
    where = Path(__file__).parent

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=where, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    if not commit or commit == "HEAD":
        return "unknown"
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
