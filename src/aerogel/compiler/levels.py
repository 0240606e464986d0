"""Rewriting every level of a program: the outermost one first, then the bodies of what it then holds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn

from .normalize import map_inner
from .program import Program, with_equations

Around = tuple[JaxprEqn, ...]


def rewrite_levels(program: Program, level: Callable[[Jaxpr], Jaxpr]) -> Program:
    """`program` with `level` applied to it and to the bodies of its loops, branches and calls.

    Each nested jaxpr is rewritten once and stays shared, since JAX lowers each object once; the same object comes back
    when nothing changed.
    """
    return rewrite_nested(program, lambda jaxpr, _: level(jaxpr))


def rewrite_nested(program: Program, level: Callable[[Jaxpr, Around], Jaxpr]) -> Program:
    """`rewrite_levels`; `level` is also given the equations that the level stands in, from the outside.

    A body that stands in several places is rewritten as it stands in the first of them.
    """
    new = _Levels(level).walk(program.jaxpr, ())
    return program if new is program.jaxpr else ClosedJaxpr(new, program.consts)


@dataclass
class _Levels:
    """One walk over all levels.

    Methods instead of two functions that close over each other: a cycle would keep the programs, and the arrays that
    they close over, until the garbage collector runs.
    """

    level: Callable[[Jaxpr, Around], Jaxpr]
    done: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by identity: the old body, kept alive, and the new

    def walk(self, jaxpr: Jaxpr, around: Around) -> Jaxpr:
        jaxpr = self.level(jaxpr, around)
        eqns = [map_inner(eqn, partial(self.nested, (*around, eqn))) for eqn in jaxpr.eqns]
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return with_equations(jaxpr, eqns)

    def nested(self, around: Around, inner: Any) -> Any:
        if id(inner) not in self.done:
            new = self.walk(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, around)
            if isinstance(inner, ClosedJaxpr):
                new = inner if new is inner.jaxpr else ClosedJaxpr(new, inner.consts)
            self.done[id(inner)] = inner, new
        return self.done[id(inner)][1]
