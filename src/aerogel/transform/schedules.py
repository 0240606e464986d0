"""In which order XLA runs a program: compiled for two, and the one kept that holds less memory.

XLA's CPU backend runs what may run next before what was made ready by it (breadth first), so that cores have work, and
holds what all of that reads. Asked for the least memory it estimates several orders, and is wrong where its library
fuses. Neither is always the better one (docs/explanation/schedules.md), and no number changes.
"""

from collections.abc import Mapping
from typing import Any

import jax

Options = Mapping[str, Any] | None
NAME = "xla_cpu_scheduler_type"
LEAST_MEMORY = "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
SMALL_BYTES = 1 << 20  # a program that holds less fits a core's cache in any order


def compiled_to_hold_less(lowered: Any, options: Options) -> tuple[Any, Options]:
    """What `lowered.compile()` returns, of the order that holds less, and the options that choose that.

    Args:
        lowered: of `jax.jit(...).lower(...)`.
        options: the `compiler_options` of that `jax.jit`. An order that these name is kept.
    """
    first = lowered.compile()
    if NAME in (options or ()) or _platform(first) != "cpu" or _held(first) < SMALL_BYTES:
        return first, options
    more = {**(options or {}), NAME: LEAST_MEMORY}
    try:
        other = lowered.compile(compiler_options=more)
    except jax.errors.JaxRuntimeError:  # a version of XLA that has no such option
        return first, options
    return (other, more) if _held(other) < _held(first) else (first, options)


def _platform(compiled: Any) -> str:
    return compiled.runtime_executable().local_devices()[0].platform


def _held(compiled: Any) -> int:
    plan = compiled.memory_analysis()
    return 0 if plan is None else plan.temp_size_in_bytes
