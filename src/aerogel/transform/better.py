"""A better program, some of whose rewrites wait until it is compiled: what they write has no derivative.

A function may be traced inside of `jit`, `scan` or `checkpoint` long before anybody takes its gradient, and that
gradient may be differentiated again. What computes with the bits of numbers would have a derivative of zero then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from aerogel import _jax
from aerogel._jax import ClosedJaxpr
from aerogel.compiler.pipeline import Pass
from aerogel.compiler.program import Program

_jax.exclude_from_tracebacks(__file__)


@dataclass(frozen=True, eq=False)
class Better:
    """A program that transformations may go through.

    Attributes:
        program: with all rewrites that have the right derivative.
        last: makes the others, of this program or of what transformations made of it; None where there are none.
    """

    program: Program
    last: Callable[[Program], Program] | None

    def evaluate(self, args: Sequence[Any]) -> list[Any]:
        """The results."""
        return self.evaluate_part(self.program, args)

    def evaluate_part(self, part: Program, args: Sequence[Any]) -> list[Any]:
        """The results of a program that was made of this one."""
        if self.last is None or self.last(part) is part:
            return _jax.evaluate(part, args)
        opened = ClosedJaxpr(_jax.convert_constvars(part.jaxpr), ())  # constants may be tracers
        run = lambda *values: _jax.evaluate(opened, values)  # noqa: E731
        return _jax.with_reverse(run, run, *part.consts, *args, better=self.last)


def keeps_derivatives(one: Pass) -> bool:
    """Whether what a pass writes has the derivative of what it read."""
    return getattr(one, "keeps_derivatives", True)


def parted(passes: Sequence[Pass]) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
    """The passes before the first that keeps no derivatives; it, and those behind it."""
    after = [one for one in passes if getattr(one, "after_rules", False)]
    first = next((k for k, one in enumerate(after) if not keeps_derivatives(one)), len(after))
    return tuple(one for one in passes if one not in after[first:]), tuple(after[first:])


def has_other_values(program: Program) -> bool:
    """Whether a program has effects, references of its own among them, or takes or returns what is no array."""
    atoms = (*program.jaxpr.invars, *program.jaxpr.constvars, *program.jaxpr.outvars)
    return bool(program.jaxpr.effects) or any(
        not isinstance(x.aval, _jax.ShapedArray) or x.aval.dtype == jax.dtypes.float0 for x in atoms
    )
