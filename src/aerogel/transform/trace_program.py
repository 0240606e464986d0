"""The program of a function: traced as the enclosing transformation sees it, ready to be rewritten and evaluated."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from aerogel import _jax
from aerogel.compiler.program import Program

_jax.exclude_from_tracebacks(__file__)


def trace_program(f: Any, args: Any, kwargs: Any) -> tuple[Program, list[Any], Callable[[], Any]]:
    """The program of `f` at these arguments, its inputs among them, and the structure of its result.

    Under a trace every leaf that is no tracer is static or a constant, and reaches `f` as it is; at top level arrays
    are inputs.
    """
    leaves, in_tree = _jax.flatten((args, kwargs))
    at_top = _jax.trace_state_clean()
    is_input = [_jax.is_traced(x) or (at_top and _is_array(x)) for x in leaves]
    inputs = [x for x, yes in zip(leaves, is_input, strict=True) if yes]
    debug_info = _jax.argument_names(f, args, kwargs, is_input)
    out_tree: Any = None

    def flat(*values: Any) -> list[Any]:
        nonlocal out_tree, debug_info
        rest = iter(values)
        full = [next(rest) if yes else x for x, yes in zip(leaves, is_input, strict=True)]
        call_args, call_kwargs = _untouched(jax.tree.unflatten(in_tree, full), (args, kwargs), is_input)
        with _jax.inside_optimize(True):
            out = f(*call_args, **call_kwargs)
        outs, out_tree = _jax.flatten(out)
        debug_info = _jax.check_returned(debug_info, out, outs)
        return outs

    program = _jax.trace_flat(flat, debug_info, [_jax.input_aval(x) for x in inputs])
    _jax.set_debug_info(program, debug_info)
    return program, inputs, lambda: out_tree


def _untouched(rebuilt: Any, given: Any, is_input: list[bool]) -> Any:
    """`rebuilt`, with every argument that holds no input replaced by the object that was given (a static tuple)."""
    (args, kwargs), flags = given, iter(is_input)

    def pick(new: Any, old: Any) -> Any:
        inputs = [next(flags) for _ in _jax.flatten(old)[0]]
        return new if any(inputs) else old

    new_args = [pick(new, old) for new, old in zip(rebuilt[0], args, strict=True)]
    # A dict is flattened in the order of its sorted keys.
    new_kwargs = {key: pick(rebuilt[1][key], kwargs[key]) for key in sorted(kwargs)}
    return new_args, {key: new_kwargs[key] for key in kwargs}


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.dtype.kind in "biufcV")


def function_name(f: Any) -> str:
    """The name a user knows `f` by."""
    return getattr(f, "__name__", None) or type(f).__name__
