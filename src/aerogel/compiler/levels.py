"""Rewriting every level of a program: the outermost one first, then the bodies of what it then holds."""

from collections.abc import Callable
from typing import Any

from aerogel._jax import ClosedJaxpr, Jaxpr

from .normalize import map_inner
from .program import Program, with_equations


def rewrite_levels(program: Program, level: Callable[[Jaxpr], Jaxpr]) -> Program:
    """`program` with `level` applied to it and to the bodies of its loops, branches and calls.

    Each nested jaxpr is rewritten once and stays shared (optimize-notes 2.11); the same object comes back when
    nothing changed.
    """
    done: dict[int, Any] = {}
    kept: list[Any] = []

    def nested(inner: Any) -> Any:
        if id(inner) not in done:
            kept.append(inner)
            if isinstance(inner, ClosedJaxpr):
                new = walk(inner.jaxpr)
                done[id(inner)] = inner if new is inner.jaxpr else ClosedJaxpr(new, inner.consts)
            else:
                done[id(inner)] = walk(inner)
        return done[id(inner)]

    def walk(jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = level(jaxpr)
        eqns = [map_inner(eqn, nested) for eqn in jaxpr.eqns]
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return with_equations(jaxpr, eqns)

    new = walk(program.jaxpr)
    return program if new is program.jaxpr else ClosedJaxpr(new, program.consts)
