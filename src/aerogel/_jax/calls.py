"""Compiled functions: their arguments as JAX resolves them, how they are made, and calls of them as they are traced."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from jax._src import api, api_util, core, pjit, util
from jax._src.lib import _jax as jaxlib
from jax._src.sharding_impls import UNSPECIFIED as UNSPECIFIED  # of an argument that is added to a call
from jax._src.sharding_impls import UnspecifiedValue

# What `jax.jit` and `pjit` are thin wrappers of. Called at the same depth, its warnings name the user's line.
make_jit = pjit.make_jit


# The modules with the doors to `jit` besides `jax.jit`: what replaces `jit` for a whole process must set
# `jit_doors[0].jit` and `jit_doors[1].pjit` too.
jit_doors = (api, pjit)

check_callable = api_util.check_callable


def signature(f: Callable[..., Any]) -> Any:
    """The signature by which JAX resolves positions and names of arguments; None where there is none."""
    return api_util.fun_signature(f)


def argument_names(fun: Callable, args: Any, kwargs: Any, is_input: Sequence[bool]) -> Any:
    """Names of those arguments of `fun` that are inputs, for JAX's messages.

    The enclosing trace's purpose ("jit") is kept in them. The trace counts names against its inputs, which static
    arguments are not; a function that brings its own debug info may name another number of leaves: then names are
    unknown.
    """
    frame = getattr(core.trace_ctx.trace, "frame", None)
    purpose = frame.debug_info.traced_for if frame is not None and frame.debug_info is not None else "jit"
    debug_info = api_util.debug_info(purpose, fun, args, kwargs)
    names = debug_info.arg_names
    fits = names is not None and len(names) == len(is_input)
    kept = tuple(name for name, yes in zip(names, is_input, strict=True) if yes) if fits else None
    return debug_info._replace(arg_names=kept)


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of a compiled function's static arguments, as JAX resolved them."""
    return jitted._jit_info.static_argnums, jitted._jit_info.static_argnames


def donated_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the arguments that a compiled function donates, as JAX resolved them."""
    return jitted._jit_info.donate_argnums, jitted._jit_info.donate_argnames


def cache_miss(jitted: Any) -> Callable[..., tuple[Any, Any, bool]]:
    """What JAX's own compiled function does where its C++ code has no answer.

    It gives the result, what the C++ code needs to answer such calls from then on (None if it cannot), and whether
    that is to be forgotten again.
    """
    return jitted._cache_miss


def with_cache_miss(jitted: Any, fun: Callable[..., Any], cache_miss: Callable[..., tuple[Any, Any, bool]]) -> Any:
    """A compiled function in C++ as `jitted`, that asks `cache_miss` where it has no answer.

    `fun` is what it calls under `jax.disable_jit`, and must be no other's: what was compiled is kept by it. Pickling is
    the one door that JAX leaves to such a function's parts, and knows nothing of how it was made.
    """
    made = jaxlib.PjitFunction.__new__(jaxlib.PjitFunction)
    made.__setstate__(jitted.__getstate__() | {"fun": fun, "cache_miss": cache_miss})
    return made


def forget_answers(jitted: Any) -> None:
    """Makes a compiled function's C++ code ask anew. What was traced and compiled is kept elsewhere."""
    jitted._clear_cache()


def can_be_traced(x: Any) -> bool:
    """Whether `jax.jit` takes a leaf as an array: numbers, arrays, shapes, refs, whatever was registered as such."""
    try:
        core.shaped_abstractify(x)
    except TypeError:
        return False
    except (ValueError, OverflowError):  # JAX knows it, and has something to say about it
        return True
    return not isinstance(x, type)  # `jnp.float32` has a dtype


def like(f: Any) -> Callable[[Any], Any]:
    """A decorator: the function gets the name, signature and docstring of `f`."""

    def decorate(g: Any) -> Any:
        named = util.wraps(f)(g)
        named.__doc__ = getattr(f, "__doc__", None)  # JAX's `wraps` makes "" of None
        return named

    return decorate


def is_unspecified(sharding: Any) -> bool:
    """Whether a `jit` argument's sharding was left open."""
    return sharding is None or isinstance(sharding, UnspecifiedValue)


def compiled_over_devices() -> bool:
    """Whether a `jit` that is tracing now was told, by `in_shardings` or `out_shardings`, to use several devices.

    The types of its program do not say so, and nothing else does while it is traced: its frame is asked.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is pjit._trace_for_jit.__code__:
            given = (*frame.f_locals["in_shardings_leaves"], *frame.f_locals["out_shardings_leaves"])
            if any(map(_is_spread, given)):
                return True
        frame = frame.f_back
    return False


def _is_spread(sharding: Any) -> bool:
    mesh = getattr(sharding, "mesh", None)  # which AUTO has too
    return (getattr(sharding, "num_devices", 1) if mesh is None else mesh.size) > 1


def watch_slow_calls(observe: Callable[[Any, Any, Sequence[Any], Any, Any], None]) -> Callable[[], None]:
    """Calls `observe` before each call of a jitted function that JAX's C++ path does not answer.

    Those are the first one of every signature, and all that are made while tracing. It gets the function, `jit_p`'s
    parameters, the flat arguments (not donated yet), `args` and `kwargs`. Returns a function that ends the watch.
    """
    # Not `_run_python_pjit`: this frame would be on the stack while the program runs, and the text of an error from a
    # callback holds that stack.
    original = pjit._infer_params

    def watched(fun: Any, info: Any, args: Any, kwargs: Any) -> Any:
        found, args_flat = original(fun, info, args, kwargs)
        if sys._getframe(1).f_code.co_name == "cache_miss":  # a call, and not `lower`, `trace` or `eval_shape`
            observe(fun, found.params, args_flat, args, kwargs)
        return found, args_flat

    def stop() -> None:
        pjit._infer_params = original

    pjit._infer_params = watched
    return stop
