"""What XLA's CPU backend of this version has vector code for, and where it runs programs."""

import os

import jax
from jax._src.lib import version as jaxlib_version

# Since jaxlib 0.12 a sum, or an extremum, with the operations entry by entry that only it reads is one call of a
# library that brings its own sines, tangents and arctangents; and an arctangent that stands in no loop is vector code
# whoever reads it. Looked at in jaxlib 0.10.2, 0.11.0 and 0.12.0.1.
HAS_VECTOR_SUMS = jaxlib_version >= (0, 12)

# Until jaxlib 0.11.1 what a loop stacks of bfloat16 is made float32, all of it, to write one entry. Since 0.11.2 the
# entry is written where it belongs (not so floats of 8 bits). Looked at in 0.10.2, 0.11.0, 0.11.1, 0.11.2 and 0.12.0.1.
WIDENS_BFLOAT16_STACKS = jaxlib_version < (0, 11, 2)

# Since jaxlib 0.11.2 what is written into a value may read that, in the same kernel, after it was written to
# (openxla/xla issue 49176, open in 2026-11). Looked at in 0.10.2, where it is right, 0.11.2 and 0.12.0.1.
WRITES_WHERE_IT_READS = jaxlib_version >= (0, 11, 2)

# Since jaxlib 0.12 what is joined of more than two pieces along its only axis is code with conditions for each entry
# (2.5 times the time); writing the short ones into place is copies. Until 0.11.2 it was the other way round. Of more
# axes joining is the faster way in both. Looked at in 0.10.2, 0.11.0, 0.11.2, 0.12.0 and 0.12.0.1.
JOINS_BY_CONDITIONS = jaxlib_version >= (0, 12)


def hands_over() -> bool:
    """Whether JAX's CPU client has other threads run what is not short; a setting, which a user may have changed."""
    return bool(jax.config.values.get("jax_cpu_enable_async_dispatch", True))


def usable_cores() -> int:
    """How many cores XLA's CPU backend shares work among: those that this process may run on."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1
