"""Many small programs run as one: what takes time is not to run them, but to start the compiler."""

from collections.abc import Sequence
from typing import Any

import jax

from aerogel import _jax

# LLVM's optimisations cost a quarter of the compile time and find none of our mistakes.
OPTIONS = {"xla_backend_optimization_level": 0}


def run_together(programs: Sequence[Any], args: Sequence[list[Any]]) -> list[list[Any]]:
    """The results of each program at its own arguments, all of them compiled as one.

    Those that are to be compared must be run apart: in one program XLA would compute what they share once.
    """

    def together(args: Sequence[list[Any]]) -> list[list[Any]]:
        return [_jax.evaluate(program, xs) for program, xs in zip(programs, args, strict=True)]

    return jax.jit(together, compiler_options=OPTIONS)(list(args))
