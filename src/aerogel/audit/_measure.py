"""One natural and one optimised program, run alternately on the same arrays: times, temporary memory, difference."""

import contextlib
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel.compiler.program import Program

from ._data import Measurement

SECONDS = float(os.environ.get("AEROGEL_COMPARE_SECONDS", "2"))  # for one sample, compilation not counted
FEWEST, MOST = 5, 100


@dataclass(frozen=True, eq=False)
class Sample:
    """A call that can be repeated: both programs, how `jit` was asked to compile them, and copies of the arguments."""

    arguments: str
    natural: Program
    optimized: Program
    parameters: dict[str, Any]
    arrays: list[Any]


def types_of(avals: Sequence[Any]) -> str:
    """The types as "f32[64,128], i32[64]", cut after a few."""
    shown = [aval.str_short(short_dtypes=True) for aval in avals[:6]]
    return ", ".join([*shown, *([f"... {len(avals)} arrays"] if len(avals) > 6 else [])])


def copy_arrays(arrays: Sequence[Any]) -> list[Any]:
    """Copies that nobody else can donate, delete or write to, on the devices where the arrays are."""
    return [x.copy() if isinstance(x, jax.Array | np.ndarray) else x for x in arrays]


def measure(sample: Sample) -> Measurement:
    """Compiles both forms anew and runs them alternately, for about `SECONDS`."""
    with types_allowed(sample), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the script had them already
        natural = compiled(sample.natural, sample)
        optimized = compiled(sample.optimized, sample)
        wanted, got = natural(*fresh(sample)), optimized(*fresh(sample))
        difference, differs_in = largest_difference(sample.natural, wanted, got)
        del wanted, got
        before, after = alternately(natural, optimized, lambda: fresh(sample))
        return Measurement(
            sample.arguments,
            "measured",
            natural_seconds=statistics.median(before),
            optimized_seconds=statistics.median(after),
            natural_temp_bytes=temp_bytes(natural, sample),
            optimized_temp_bytes=temp_bytes(optimized, sample),
            difference=difference,
            differs_in=differs_in,
            repeats=len(before),
        )


def types_allowed(sample: Sample) -> contextlib.AbstractContextManager:
    """A context in which 64-bit arguments stay 64 bits wide, if the sample has any."""
    wide = any(getattr(getattr(x, "dtype", None), "name", "") in WIDE for x in sample.arrays)
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


WIDE = {"float64", "int64", "uint64", "complex128"}


def compiled(program: Program, sample: Sample) -> Any:
    """A jitted function of flat arrays that computes `program` as the script asked for it."""

    def run(*arrays: Any) -> Any:
        return _jax.evaluate(program, arrays)

    parameters = sample.parameters
    options: dict[str, Any] = {
        "donate_argnums": donated(sample),
        "keep_unused": parameters["keep_unused"],
        "compiler_options": dict(parameters["compiler_options_kvs"]) or None,
    }
    for name in ("in_shardings", "out_shardings"):
        if not all(_jax.is_unspecified(s) for s in parameters[name]):
            options[name] = tuple(None if _jax.is_unspecified(s) else s for s in parameters[name])
    return _jax.original_jit(run, **options)


def donated(sample: Sample) -> tuple[int, ...]:
    """The arguments that a call consumes."""
    return tuple(i for i, yes in enumerate(sample.parameters["donated_invars"]) if yes)


def fresh(sample: Sample) -> list[Any]:
    """Arguments for one call: donated ones as new copies, ready on the device."""
    consumed = set(donated(sample))
    arrays = [x.copy() if i in consumed and hasattr(x, "copy") else x for i, x in enumerate(sample.arrays)]
    return jax.block_until_ready(arrays)


def alternately(
    natural: Callable[..., Any], optimized: Callable[..., Any], arguments: Callable[[], list[Any]]
) -> tuple[list[float], list[float]]:
    """Seconds of each call of both, equally many. Who goes first changes each time, so that neither is favoured."""
    times: tuple[list[float], list[float]] = ([], [])
    forms = [(natural, times[0]), (optimized, times[1])]
    end = time.perf_counter() + SECONDS
    while len(times[0]) < MOST and (len(times[0]) < FEWEST or time.perf_counter() < end):
        for form, seconds in forms:
            given = arguments()
            start = time.perf_counter()
            jax.block_until_ready(form(*given))
            seconds.append(time.perf_counter() - start)
        forms.reverse()
    return times


def temp_bytes(form: Any, sample: Sample) -> int | None:
    """Memory besides arguments and results; None where the backend does not tell."""
    analysis = form.lower(*fresh(sample)).compile().memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)


def largest_difference(natural: Program, wanted: Sequence[Any], got: Sequence[Any]) -> tuple[float, str]:
    """The largest difference over all results, each relative to its own largest absolute value; and in which it is.

    Equal infinities and nans in the same places are no difference; other ones are an infinite difference.
    """
    differences = [relative_difference(a, b) for a, b in zip(wanted, got, strict=True)]
    largest = max(differences, default=0.0)
    if not largest:
        return 0.0, ""
    place = differences.index(largest)
    name, of = _jax.result_name(natural.jaxpr, place), types_of([natural.jaxpr.outvars[place].aval])
    return largest, f"{name}, {of}{_size(wanted[place])}"


def _size(x: Any) -> str:
    """How large the numbers of a result are: some are zero but for rounding."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return ""
    values = np.abs(np.asarray(x).astype(np.complex128 if jnp.iscomplexobj(x) else np.float64))
    return f" of numbers up to {values[np.isfinite(values)].max(initial=0.0):.1e}"


def relative_difference(wanted: Any, got: Any) -> float:
    """Of one array. Keys and booleans differ by 0 or 1."""
    if jnp.issubdtype(wanted.dtype, jax.dtypes.extended):
        wanted, got = jax.random.key_data(wanted), jax.random.key_data(got)
        return float(not np.array_equal(wanted, got))
    kind = np.complex128 if jnp.issubdtype(wanted.dtype, jnp.complexfloating) else np.float64
    a, b = np.asarray(wanted).astype(kind), np.asarray(got).astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a[~same]).all() and np.isfinite(b[~same]).all()):
        return float("inf")
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return float(np.abs(a[~same] - b[~same]).max() / scale) if scale else float("inf")
