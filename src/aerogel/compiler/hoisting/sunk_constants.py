"""Large constants of loops, made in the steps that read them, where each step can make them in blocks.

JAX computes what a formula in a loop makes of constants once, before the loop, when it differentiates: all distances of
points that do not move, which every step then reads from memory. In blocks a step makes them of the points.
"""

from collections.abc import Callable, Collection, Container, Iterator
from functools import partial

from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..cost.work import dot_shape
from ..level import Level
from ..loop import as_loop, is_float
from ..loop_copy import LoopCopy
from ..normalize import drop_dead
from ..program import copy_equation, inner_jaxprs, is_var, with_equations
from ..record import record
from ..streams.stream_growth import COMPARISONS
from ..streams.streams import is_cheap

# The products of points in space, of which each step makes all distances.
FEW_TERMS = 8


@record
class Sunk:
    """A level with constants in its loops.

    Attributes:
        values: the large values that the level made.
        loops: the loops that make them now, each behind what it was.
    """

    jaxpr: Jaxpr
    values: tuple[Var, ...]
    loops: tuple[tuple[JaxprEqn, JaxprEqn], ...]


def with_constants_inside(
    level: Level,
    least_bytes: int,
    pays: Callable[[Sunk], bool],
    shared: bool = False,
    among: Container[int] | None = None,
) -> Sunk | None:
    """The level without the large values that only its loops read, if they are cheap; None if there are none.

    Args:
        level: its equations.
        least_bytes: from which size on a value is large.
        pays: whether the loops are better in their new form.
        shared: whether other equations may read the values, too. These stay for them.
        among: the places of the loops that may be changed; None: all.
    """
    reads = partial(_is_constant, level, among)
    values = _values(level, least_bytes, shared, reads)
    loops: dict[int, JaxprEqn] = {}
    for place in sorted({k for v in values for k in level.readers(v) if reads(k, v)}):
        eqn = level.eqns[place]
        new = None if _is_compared(eqn, values) else _inside(level, eqn, values)
        if new is None:
            return None
        loops[place] = new
    if not loops:
        return None
    eqns = [loops.get(k, eqn) for k, eqn in enumerate(level.eqns)]
    pairs = tuple((level.eqns[k], new) for k, new in loops.items())
    sunk = Sunk(drop_dead(with_equations(level.jaxpr, eqns)), tuple(values), pairs)
    return sunk if pays(sunk) else None


def is_made_again(eqn: JaxprEqn) -> bool:
    """Whether what an equation makes is made in blocks for little: elementwise, turned, products of few terms."""
    if eqn.primitive.name == "dot_general":
        return dot_shape(eqn)[-1] <= FEW_TERMS
    return eqn.primitive.name == "transpose" or is_cheap(eqn)


def _values(level: Level, least_bytes: int, shared: bool, reads: Callable[[int, Var], bool]) -> list[Var]:
    """The large values that are cheap to make of small ones, and that nothing but loops `reads`, as constants.

    `shared`: that a loop reads, or that make what one reads, and others as well.
    """
    found: set[Var] = set()
    for eqn in level.eqns:
        if is_made_again(eqn) and all(not is_var(x) or x in found or nbytes(x.aval) < least_bytes for x in eqn.invars):
            found.update(v for v in eqn.outvars if not isinstance(v, DropVar) and nbytes(v.aval) >= least_bytes)
    while shared:
        kept = {v for v in found if any(_may_read(level, k, v, found, reads) for k in level.readers(v))}
        if kept == found:
            return sorted(found, key=lambda v: level.made_by[v])
        found = kept
    while True:
        kept = {v for v in found if all(_may_read(level, k, v, found, reads) for k in level.readers(v))}
        kept = {v for v in kept if all(x in kept for x in _large(level.eqns[level.made_by[v]], least_bytes))}
        if kept == found:
            return sorted(found, key=lambda v: level.made_by[v])
        found = kept


def _large(eqn: JaxprEqn, least_bytes: int) -> Iterator[Var]:
    return (x for x in eqn.invars if is_var(x) and nbytes(x.aval) >= least_bytes)


def _may_read(level: Level, place: int, v: Var, found: Collection[Var], reads: Callable[[int, Var], bool]) -> bool:
    """Whether the equation at `place` makes another of the values, or is a loop that reads `v` in all steps."""
    if place < 0:
        return False
    return all(out in found for out in level.eqns[place].outvars) or reads(place, v)


def _is_constant(level: Level, among: Container[int] | None, place: int, v: Var) -> bool:
    """Whether the equation at `place` is a loop, `among` those, that reads `v` in all steps, and nothing else of it."""
    if place < 0 or (among is not None and place not in among):
        return False
    loop = as_loop(level.eqns[place])
    return loop is not None and 0 < sum(x is v for x in loop.consts) == sum(x is v for x in loop.eqn.invars)


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
    copy = LoopCopy(loop, made=values)
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
