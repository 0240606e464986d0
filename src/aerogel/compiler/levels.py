"""Rewriting every level of a program: the outermost one first, then the bodies of what it then holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aerogel._jax import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, new_jaxpr, scan_counts

from .loop import Loop, as_loop
from .normalize import map_inner
from .program import Program, bodies, depends_on, with_equations

Around = tuple[JaxprEqn, ...]
MANY_STEPS = 64  # of a loop: what is done before it, once, costs little beside it


def rewrite_levels(program: Program, level: Callable[[Jaxpr], Jaxpr]) -> Program:
    """`program` with `level` applied to it and to the bodies of its loops, branches and calls.

    Each nested jaxpr is rewritten once and stays shared, since JAX lowers each object once; the same object comes back
    when nothing changed.
    """
    return rewrite_nested(program, lambda jaxpr, _: level(jaxpr))


def rewrite_loops(program: Program, loop: Callable[[Loop, Jaxpr], Sequence[JaxprEqn] | None]) -> Program:
    """`rewrite_levels`, loop by loop: each becomes the equations that `loop` makes of it, and stays for None.

    `loop` is also given the level that the loop stands in.
    """

    def level(jaxpr: Jaxpr) -> Jaxpr:
        eqns: list[JaxprEqn] = []
        stays = True
        for eqn in jaxpr.eqns:
            found = as_loop(eqn)
            new = None if found is None else loop(found, jaxpr)
            stays = stays and new is None
            eqns += [eqn] if new is None else new
        return jaxpr if stays else with_equations(jaxpr, eqns)

    return rewrite_levels(program, level)


def rewrite_nested(program: Program, level: Callable[[Jaxpr, Around], Jaxpr]) -> Program:
    """`rewrite_levels`; `level` is also given the equations that the level stands in, from the outside.

    A body that stands in several places is rewritten as it stands in the first of them.
    """
    new = _Levels(level).walk(program.jaxpr, ())
    return program if new is program.jaxpr else ClosedJaxpr(new, program.consts)


def rewrite_steps(
    program: Program,
    level: Callable[[Jaxpr, Sequence[JaxprEqn]], Jaxpr],
    in_few_steps: Callable[[Jaxpr, int], set[int]] | None = None,
    many: int = MANY_STEPS,
) -> Program:
    """`rewrite_levels`; of the body of a loop of `many` steps, `level` is given what differs from step to step.

    XLA computes the rest once, before the loop: what would be cheaper than that in one step is dearer in all of them.
    Its equations are given too, since what they make may be known, as an identity is. Of a loop of few steps that holds
    for equations at the places `in_few_steps` alone, those that read constants of the loop and nothing else; and of a
    program, which is one step, for those that read its arguments.
    """
    return rewrite_nested(program, lambda jaxpr, around: _of_steps(jaxpr, around, level, in_few_steps, many))


def _of_steps(
    jaxpr: Jaxpr,
    around: Around,
    level: Callable[[Jaxpr, Sequence[JaxprEqn]], Jaxpr],
    in_few_steps: Callable[[Jaxpr, int], set[int]] | None,
    many: int,
) -> Jaxpr:
    early = _once(jaxpr, around, many) or _once_of_few(jaxpr, around, in_few_steps)
    if not early:
        return level(jaxpr, ())
    late = [eqn for k, eqn in enumerate(jaxpr.eqns) if k not in early]
    made = [v for k in sorted(early) for v in jaxpr.eqns[k].outvars if not isinstance(v, DropVar)]
    step = new_jaxpr(jaxpr, [*jaxpr.invars, *made], jaxpr.outvars, late, jaxpr.constvars)
    before = [jaxpr.eqns[k] for k in sorted(early)]
    new = level(step, before)
    if new is step:
        return jaxpr
    assert list(new.invars) == list(step.invars), "a level keeps its arguments"
    eqns = [*before, *new.eqns]
    return new_jaxpr(jaxpr, jaxpr.invars, new.outvars, eqns, jaxpr.constvars)


def _once(jaxpr: Jaxpr, around: Around, many: int) -> set[int]:
    """The places of the equations that are the same in all steps of the loop that a jaxpr is the body of."""
    loop = around[-1] if around else None
    if loop is None or loop.primitive.name not in ("scan", "while"):
        return set()
    if loop.primitive.name == "scan":
        constants = scan_counts(loop.params)[0] if loop.params["length"] >= many else 0
    else:
        constants = loop.params["body_nconsts"] if jaxpr is loop.params["body_jaxpr"].jaxpr else 0
    varies = depends_on(jaxpr, jaxpr.invars[constants:])
    same = (k for k, eqn in enumerate(jaxpr.eqns) if not eqn.effects and not any(v in varies for v in eqn.outvars))
    return set(same) if constants else set()


def _once_of_few(jaxpr: Jaxpr, around: Around, places: Callable[[Jaxpr, int], set[int]] | None) -> set[int]:
    """The places, among those asked for, of what reads constants of the scan that a jaxpr is the body of."""
    if places is None or (around and around[-1].primitive.name != "scan"):
        return set()
    steps, count = (around[-1].params["length"], scan_counts(around[-1].params)[0]) if around else (1, None)
    constants = {*jaxpr.constvars, *jaxpr.invars[:count]}
    return {k for k in places(jaxpr, steps) if constants.issuperset(jaxpr.eqns[k].invars)}


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
        changed: dict[int, JaxprEqn] = {}
        for eqn, _ in bodies(jaxpr):
            new = map_inner(eqn, partial(self.nested, (*around, eqn)))
            if new is not eqn:
                changed[id(eqn)] = new
        return with_equations(jaxpr, [changed.get(id(eqn), eqn) for eqn in jaxpr.eqns]) if changed else jaxpr

    def nested(self, around: Around, inner: Any) -> Any:
        if id(inner) not in self.done:
            new = self.walk(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, around)
            if isinstance(inner, ClosedJaxpr):
                new = inner if new is inner.jaxpr else ClosedJaxpr(new, inner.consts)
            self.done[id(inner)] = inner, new
        return self.done[id(inner)][1]
