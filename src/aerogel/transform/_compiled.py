"""How a traced function becomes a compiled one: one place, which `aerogel run` takes over to keep its table."""

from collections.abc import Callable
from typing import Any

from aerogel import _jax

from .optimize import optimize

_jax.exclude_from_tracebacks(__file__)

# What stands for a compiled function in front of its users: the function itself, or one that counts its calls.
Shown = Callable[[Any], Any]
# From the function that the user gave, what is traced in its place, the options of `optimize` and those of `jax.jit`.
Compile = Callable[[Any, Any, dict[str, Any], dict[str, Any]], tuple[Any, Shown]]


def _plainly(_: Any, traced: Any, optimized: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Shown]:
    return _jax.original_jit(optimize(traced, **optimized), **options), lambda call: call


_compile: Compile = _plainly


def compiled(f: Any, traced: Any, optimized: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Shown]:
    """`jax.jit(optimize(traced, **optimized), **options)`, for the function `f` of the user's, and how to show it."""
    return _compile(f, traced, optimized, options)


def take_over(compile_: Compile) -> Callable[[], None]:
    """From here on `ag.jit` compiles by `compile_`. Returns what ends that."""
    global _compile
    before, _compile = _compile, compile_

    def give_back() -> None:
        global _compile
        _compile = before

    return give_back
