"""Large constants of loops, made in the steps that read them, where each step can make them in blocks.

JAX computes what a formula in a loop makes of constants once, before the loop, when it differentiates: all distances of
points that do not move, which every step then reads from memory. In blocks a step makes them of the points.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..level import Level
from ..loop import as_loop, is_float
from ..normalize import drop_dead
from ..program import copy_equation, inner_jaxprs, is_var, with_equations
from ..streams.stream_growth import COMPARISONS
from ..streams.streams import is_cheap
from .hoist import LoopCopy


@dataclass(frozen=True)
class Sunk:
    """A level with constants in its loops.

    Attributes:
        values: the large values that the level made.
    """

    jaxpr: Jaxpr
    values: tuple[Var, ...]


def with_constants_inside(level: Level, least_bytes: int, pays: Callable[[JaxprEqn, JaxprEqn], bool]) -> Sunk | None:
    """The level without the large values that only its loops read, if they are cheap; None if there are none.

    Args:
        level: its equations.
        least_bytes: from which size on a value is large.
        pays: whether a loop is better in another form, which makes the values in its steps.
    """
    values = _values(level, least_bytes)
    places = sorted({k for v in values for k in level.readers(v)} - {level.made_by[v] for v in values})
    loops: dict[int, JaxprEqn] = {}
    for place in places:
        eqn = level.eqns[place]
        new = None if _is_compared(eqn, values) else _inside(level, eqn, values)
        if new is None or not pays(eqn, new):
            return None
        loops[place] = new
    if not loops:
        return None
    eqns = [loops.get(k, eqn) for k, eqn in enumerate(level.eqns)]
    return Sunk(drop_dead(with_equations(level.jaxpr, eqns)), tuple(values))


def _values(level: Level, least_bytes: int) -> list[Var]:
    """The large values that are cheap to make of small ones, and that nothing but loops reads, as constants."""
    found: set[Var] = set()
    for eqn in level.eqns:
        if is_cheap(eqn) and all(not is_var(x) or x in found or nbytes(x.aval) < least_bytes for x in eqn.invars):
            found.update(v for v in eqn.outvars if not isinstance(v, DropVar) and nbytes(v.aval) >= least_bytes)
    while True:
        kept = {v for v in found if all(_may_read(level, k, v, found) for k in level.readers(v))}
        kept = {v for v in kept if all(x in kept for x in _large(level.eqns[level.made_by[v]], least_bytes))}
        if kept == found:
            return sorted(found, key=lambda v: level.made_by[v])
        found = kept


def _large(eqn: JaxprEqn, least_bytes: int) -> Iterator[Var]:
    return (x for x in eqn.invars if is_var(x) and nbytes(x.aval) >= least_bytes)


def _may_read(level: Level, place: int, v: Var, found: Collection[Var]) -> bool:
    """Whether the equation at `place` makes another of the values, or is a loop that reads `v` in all steps."""
    if place < 0:
        return False
    eqn = level.eqns[place]
    if all(out in found for out in eqn.outvars):
        return True
    loop = as_loop(eqn)
    return loop is not None and sum(x is v for x in loop.consts) == sum(x is v for x in eqn.invars)


def _is_compared(scan: JaxprEqn, values: Collection[Var]) -> bool:
    """Whether a loop compares numbers that it makes of the values: in another kernel the last bit may be another.

    The gradient of a minimum looks for what is equal to it.
    """
    loop = as_loop(scan)
    assert loop is not None
    made = {v for v, x in zip(loop.body_consts, loop.consts, strict=True) if x in values}
    return any(_compares(eqn) for eqn in _behind(loop.body, made))


def _behind(jaxpr: Jaxpr, made: set[Var]) -> Iterator[JaxprEqn]:
    for eqn in jaxpr.eqns:
        if any(is_var(x) and x in made for x in eqn.invars):
            made.update(eqn.outvars)
            yield eqn


def _compares(eqn: JaxprEqn) -> bool:
    if inner := inner_jaxprs(eqn):
        return any(_compares(one) for jaxpr in inner for one in jaxpr.eqns)
    return eqn.primitive.name in COMPARISONS and all(is_var(x) and is_float(x.aval.dtype) for x in eqn.invars)


def _inside(level: Level, scan: JaxprEqn, values: Collection[Var]) -> JaxprEqn | None:
    """The loop, which makes the values that it reads in each step; None if it would do something around it."""
    loop = as_loop(scan)
    assert loop is not None
    copy = LoopCopy(loop)
    env: dict[Var, Atom] = {}
    for v in values:
        eqn = level.eqns[level.made_by[v]]
        if all(out in env for out in eqn.outvars):
            continue
        env |= {x: copy.new.const(x) for x in eqn.invars if is_var(x) and x not in env}
        copy.new.body.eqns.append(copy_equation(eqn, env))
    pairs = zip(loop.body_consts, loop.consts, strict=True)
    copy.env |= {v: copy.new.body.as_weak_as(v, env[x]) for v, x in pairs if is_var(x) and x in values}
    copy.new.body.eqns += [copy_equation(eqn, copy.env) for eqn in loop.body.eqns]
    copy.finish()
    if copy.new.before.eqns or copy.new.after.eqns:
        return None
    return copy.new.equation()
