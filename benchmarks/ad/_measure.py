"""One row measured: plain JAX, Aerogel and PyTorch, alternately in one process."""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import jax
import numpy as np

import aerogel as ag

from .._timing import Quartiles, alternate, largest_difference
from ._row import Row

PLAIN, OURS = "plain JAX", "Aerogel"
VALUE = ", value only"
FROM_S = 30e-6  # what takes less is the call itself: a ratio of a gradient to its value says nothing there
SAME = 1e-2  # of two libraries' values and norms of gradients: a pendulum near its top forgets where it was


@dataclass(frozen=True)
class Result:
    """What one row came to.

    Attributes:
        seconds: of value and gradient, by form.
        over_plain: Aerogel's time over that of plain JAX.
        over_torch: and over the faster one of PyTorch's two forms; None without PyTorch.
        over_value: and over the value alone, in Aerogel.
        bytes: temporary memory of plain JAX's program and of Aerogel's.
        difference: largest one between the results of these two, relative to the largest entry.
        missed: a sentence for each target.
        faults: pages of fresh memory that a call is given by the system, where that is what the row is about.
    """

    number: int
    name: str
    seconds: dict[str, float]
    over_plain: Quartiles
    over_torch: Quartiles | None
    over_value: Quartiles
    bytes: tuple[int, int]
    difference: float
    missed: tuple[str, ...]
    faults: float | None = None


def measure_row(row: Row, *, quick: bool, cores: int) -> Result:
    """The row's result. `quick` measures few rounds, and does not compile with PyTorch."""
    arrays = row.args()
    with jax.enable_x64(arrays[0].dtype == np.float64):
        args = tuple(jax.device_put(x) for x in arrays)
        compiled = {
            PLAIN: jax.jit(jax.value_and_grad(row.f, row.wrt)),
            OURS: ag.jit(ag.value_and_grad(row.f, row.wrt)),
            OURS + VALUE: ag.jit(row.f),
        }
        calls = {name: functools.partial(f, *args) for name, f in compiled.items()}
        if row.prepared:
            calls[OURS] = in_its_own_memory(ag.prepare(ag.value_and_grad(row.f, row.wrt), *args), args)
        # copies: what NumPy looks at cannot give its memory away
        outputs = {name: jax.tree.map(np.array, call()) for name, call in calls.items()}
        if find_spec("torch") is not None:
            calls |= torch_calls(row, arrays, outputs[PLAIN], quick, cores)
        effort = {"min_rounds": 5, "budget_s": 0.3, "limit_s": 10.0} if quick else {"budget_s": 2.0, "limit_s": 20.0}
        seconds = alternate(calls, **effort)
        temp = [compiled[name].lower(*args).compile().memory_analysis().temp_size_in_bytes for name in (PLAIN, OURS)]
        faults = page_faults(calls[OURS]) if row.prepared else None
    difference = largest_difference(outputs[PLAIN], outputs[OURS])
    return judged(row, seconds, (temp[0], temp[1]), difference, faults)


def in_its_own_memory(prepared: ag.Prepared, args: tuple) -> Callable[[], object]:
    """A call that gives the memory of its last gradient to the next."""
    grads = None

    def call():
        nonlocal grads
        value, grads = prepared(*args, out=grads)
        return value, grads

    return call


def page_faults(call: Callable[[], object], calls: int = 10) -> float:
    """How often a call is given fresh memory by the system."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        jax.block_until_ready(call())
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


def torch_calls(
    row: Row, arrays: tuple[np.ndarray, ...], wanted: object, quick: bool, cores: int
) -> dict[str, Callable[[], object]]:
    """What PyTorch is measured by, once it gave the same results."""
    import torch

    from . import _torch

    torch.set_num_threads(cores)
    form = _torch.FORMS[row.name]
    calls = {"PyTorch": _torch.value_and_grad(form, row.wrt, arrays)}
    if form.compiles and not quick:
        calls["PyTorch, compiled"] = _torch.compiled(form, row.wrt, arrays)
    for name, call in calls.items():
        # gradients of parameters that PyTorch keeps transposed are transposed too: their norms are not
        difference = largest_difference(norms(jax.tree.leaves(wanted)), norms(_torch.arrays(call())))
        if difference > SAME:
            raise AssertionError(f"{row.name}: {name} computes something else (by {difference:.1e})")
    return calls


def norms(leaves) -> list[float]:
    return [float(np.linalg.norm(np.asarray(x, np.float64))) for x in leaves]


def judged(
    row: Row, seconds: dict[str, np.ndarray], temp: tuple[int, int], difference: float, faults: float | None
) -> Result:
    """The result, with a sentence for each target that it misses."""

    def over(name: str) -> Quartiles:
        return Quartiles.of(seconds[OURS] / seconds[name])

    medians = {name: float(np.median(each)) for name, each in seconds.items()}
    torch = min((name for name in medians if name.startswith("PyTorch")), key=medians.__getitem__, default=None)
    over_torch = None if torch is None else over(torch)
    plain, value = over(PLAIN), over(OURS + VALUE)
    target = row.time[0] / row.time[1]
    missed = []
    if plain.median > target:
        missed.append(f"time {plain.median:.2f} of plain JAX, target {target:.2f}")
    if row.memory is not None and temp[1] > temp[0] * row.memory[0] / row.memory[1]:
        missed.append(f"memory {temp[1] / temp[0]:.2f} of plain JAX, target {row.memory[0] / row.memory[1]:.2f}")
    if row.published is not None and medians[PLAIN] > FROM_S and value.median > row.published:
        missed.append(f"{value.median:.2f} of the value's time, published {row.published:g}")
    if over_torch is not None and over_torch.median > 1:
        missed.append(f"time {over_torch.median:.2f} of PyTorch")
    if faults is not None and faults >= 1:
        missed.append(f"{faults:.0f} page faults a call")
    return Result(row.number, row.name, medians, plain, over_torch, value, temp, difference, tuple(missed), faults)
