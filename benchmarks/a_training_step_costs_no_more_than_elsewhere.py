"""Claim: a step of training (loss, gradient, Adam) takes no more time and memory than in any other library.

Four models in a few sizes, each written in Aerogel, in plain JAX by hand, in Equinox, in Flax NNX, and in PyTorch,
eager and compiled, if that is installed; all get the same parameters and batches, and must find the same losses. What
is donated is the model and the state of its optimiser. Ratios are ours over theirs. Memory is the most that a step
holds at once: XLA's plan, and for PyTorch what it allocates. PyTorch waits for threads that others disturb: run this on
cores that nothing else runs on, `taskset --cpu-list 2,3 python -m benchmarks ...`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from ._finding import Finding
from ._timing import Quartiles, alternate
from .training import _equinox, _nnx, _ours, _plain
from .training._size import SIZES, Size
from .training._trainer import Trainer

OURS = "Aerogel"
TIME_BOUND = 1.03  # two programs that are the same are measured this far apart
SAME = 1e-2  # of losses after three steps: PyTorch's LSTM has two biases, and so learns a little faster


def findings(quick: bool = False) -> list[Finding]:
    """Ratios of times and of peak memory, ours over theirs."""
    return [found for size in SIZES for found in measured(size, quick)]


def measured(size: Size, quick: bool) -> list[Finding]:
    """One model in one size."""
    trainers = {name: trainer(size) for name, trainer in libraries(with_compiled_torch=not quick).items()}
    losses = {name: [float(each.step()) for _ in range(3)] for name, each in trainers.items()}
    for name, found in losses.items():
        if not np.allclose(found, losses[OURS], rtol=SAME):
            raise AssertionError(f"{size.name}: {name} finds other losses, {found} and not {losses[OURS]}")
    effort: dict[str, Any] = (
        {"min_rounds": 5, "budget_s": 0.3, "limit_s": 5.0} if quick else {"budget_s": 4.0, "limit_s": 30.0}
    )
    seconds = alternate({name: each.step for name, each in trainers.items()}, **effort)
    peak_bytes = {name: each.peak_bytes() for name, each in trainers.items()}
    rows = []
    for name in trainers:
        if name == OURS:
            continue
        times = f"{np.median(seconds[OURS]) * 1e3:.3g} and {np.median(seconds[name]) * 1e3:.3g} ms"
        over = Quartiles.of(seconds[OURS] / seconds[name])
        rows.append(Finding(size.name, f"time over {name}", over, TIME_BOUND, times))
        sizes = f"{peak_bytes[OURS] / 1e6:.3g} and {peak_bytes[name] / 1e6:.3g} MB"
        share = peak_bytes[OURS] / peak_bytes[name]
        rows.append(Finding(size.name, f"memory over {name}", Quartiles(share, share, share), 1.0, sizes))
    return rows


def libraries(*, with_compiled_torch: bool) -> dict[str, Callable[[Size], Trainer]]:
    """What makes a trainer, by library."""
    found: dict[str, Callable[[Size], Trainer]] = {
        OURS: _ours.trainer,
        "plain JAX": _plain.trainer,
        "Equinox": _equinox.trainer,
        "Flax NNX": _nnx.trainer,
    }
    if find_spec("torch") is None:
        return found
    import torch

    from .training import _torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    found["PyTorch"] = lambda size: _torch.trainer(size, compiled=False)
    if with_compiled_torch:
        found["PyTorch, compiled"] = lambda size: _torch.trainer(size, compiled=True)
    return found
