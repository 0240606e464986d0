"""Rewriting every level of a program: the outermost one first, then the bodies of what it then holds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aerogel._jax import ClosedJaxpr, Jaxpr

from .normalize import map_inner
from .program import Program, with_equations


def rewrite_levels(program: Program, level: Callable[[Jaxpr], Jaxpr]) -> Program:
    """`program` with `level` applied to it and to the bodies of its loops, branches and calls.

    Each nested jaxpr is rewritten once and stays shared, since JAX lowers each object once; the same object comes back
    when nothing changed.
    """
    new = _Levels(level).walk(program.jaxpr)
    return program if new is program.jaxpr else ClosedJaxpr(new, program.consts)


@dataclass
class _Levels:
    """One walk over all levels.

    Methods instead of two functions that close over each other: a cycle would keep the programs, and the arrays that
    they close over, until the garbage collector runs.
    """

    level: Callable[[Jaxpr], Jaxpr]
    done: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by identity: the old body, kept alive, and the new

    def walk(self, jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = self.level(jaxpr)
        eqns = [map_inner(eqn, self.nested) for eqn in jaxpr.eqns]
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return with_equations(jaxpr, eqns)

    def nested(self, inner: Any) -> Any:
        if id(inner) not in self.done:
            new = self.walk(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)
            if isinstance(inner, ClosedJaxpr):
                new = inner if new is inner.jaxpr else ClosedJaxpr(new, inner.consts)
            self.done[id(inner)] = inner, new
        return self.done[id(inner)][1]
