"""What is active now: traces, and the settings that change what tracing does."""

from typing import Any

import jax
from jax._src import config as jax_config
from jax._src import core
from jax._src.interpreters import ad
from jax._src.interpreters import partial_eval as pe

# A jit-cache-sensitive context: what is traced inside another optimised function must not be cached as if it had
# been traced alone. Public since jax 0.8.
inside_optimize = jax.make_user_context(False)
# The rule set of `ag.rules.use`; part of the key of every compiled function for the same reason.
rules_in_use = jax.make_user_context(None)
# The rules and passes that are applied just before something is differentiated.
rules_in_time = jax.make_user_context(None)
# How many derivatives are taken of what is called, if the last one is a gradient: a compiled function has one program
# for its value, one for its gradient and one for more.
gradients_taken = jax.make_user_context(0)


# What JAX's own caches of traces are keyed by: every setting and context that tracing looks at.
trace_key = jax_config.trace_context


def is_traced(x: Any) -> bool:
    """Whether a leaf is an input of the program: under a trace, what is no tracer is static or a constant."""
    return isinstance(x, core.Tracer)


def trace_state_clean() -> bool:
    """Whether no transformation is active: then arrays are inputs too."""
    return core.trace_state_clean()


def is_staging() -> bool:
    """Whether what is computed now becomes part of a program instead of running."""
    trace = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, pe.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def is_outermost() -> bool:
    """Whether what is computed now becomes part of a program that no other program holds.

    `jax.jit` traces under a `DynamicJaxprTrace`, with the traces around it above (looked at in jax 0.10.2 and 0.12).
    """
    trace = core.trace_ctx.trace
    return isinstance(trace, pe.DynamicJaxprTrace) and isinstance(getattr(trace, "parent_trace", None), core.EvalTrace)


def derivatives_above() -> int:
    """How many forward-mode and linearising traces there are above what is computed now."""
    trace, count = core.trace_ctx.trace, 0
    while trace is not None:
        count += isinstance(trace, (ad.JVPTrace, ad.LinearizeTrace))
        trace = getattr(trace, "parent_trace", None)
    return count


def differentiating(*, again: bool = False) -> bool:
    """Whether a derivative is taken of what is computed now; with `again`, whether one more is than that at hand."""
    return derivatives_above() > again or (again and gradients_taken.value > 1)


def reverse_mode_is_next() -> bool:
    """Whether a gradient is being taken of what is computed now, which JAX would see operation by operation.

    What is between the two maps, or takes tangents, or is a `jit`: other traces make bodies for JAX to differentiate.
    """
    trace = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, ad.LinearizeTrace):
            return trace.is_vjp
        if isinstance(trace, pe.DynamicJaxprTrace):
            info = trace.frame.debug_info
            if info is None or info.traced_for != "jit":
                return False
        trace = getattr(trace, "parent_trace", None)
    return False


def is_moved(x: Any) -> bool:
    """Whether the innermost derivative is by a value."""
    return isinstance(x, ad.JVPTracer | ad.LinearizeTracer) and x._trace is core.trace_ctx.trace


def jit_disabled() -> bool:
    """Whether `jax.disable_jit` is on: functions run operation by operation, on values."""
    return jax_config.disable_jit.value


def checking_keys() -> bool:
    """Whether `debug_key_reuse` looks at a function: it is about the user's own program, every draw in it."""
    return jax_config.debug_key_reuse.value


def hunting_nans() -> bool:
    """Whether `debug_nans` or `debug_infs` runs a function operation by operation, to find the one at fault."""
    return (jax_config.debug_nans.value or jax_config.debug_infs.value) and core.trace_state_clean()
