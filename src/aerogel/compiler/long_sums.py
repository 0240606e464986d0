"""Long sums of a gradient: what a choice of residuals spares of memory, the factors of sums of products may take.

The gradient of a recurrent layer's weights adds a product of the step's rows to a whole matrix in every step. As one
product of the rows of all steps it is faster, at the price of stacks that did not exist. Where the loops store less for
each other than JAX's autodiff would, there is room for them: the gradient holds no more than it would have.
"""

from collections.abc import Mapping

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from .axes.elementwise import NAMES
from .cost import Machine, equation_seconds, nbytes
from .hoist_plan import LEAST_SECONDS, LEAST_SHARE
from .level import Level
from .loop import Loop, as_loop
from .sink import SHAPING, Sum, find_sums, is_long, new_stacks, seconds_saved, sink

# Of what is spared: a stack of a few steps besides, of which the product makes a copy.
SHARE = 0.9
MOST_LOOKED_AT = 16  # values, on the way from an input to a product
ENTRYWISE = frozenset(NAMES) | SHAPING | {"slice"}


def with_sums_outside(
    jaxpr: Jaxpr, spared: Mapping[Var, int], machine: Machine
) -> tuple[Jaxpr, list[tuple[JaxprEqn, int]]]:
    """The level with such sums behind their loops, and which: a product of each, and the bytes of new stacks.

    Args:
        spared: for final carries of the loops that may be changed, the bytes that there is room for.
    """
    moved: list[tuple[JaxprEqn, int]] = []
    for eqn in jaxpr.eqns:
        loop = as_loop(eqn)
        room = 0 if loop is None else max((spared.get(v, 0) for v in loop.finals), default=0)
        if loop is None or not room:
            continue
        chosen, added = _affordable(loop, int(SHARE * room), machine)
        if chosen:
            place = next(i for i, one in enumerate(jaxpr.eqns) if one is eqn)
            jaxpr = sink(loop, chosen).apply(jaxpr, place)
            moved += [(one.eqn, added if one is chosen[0] else 0) for one in chosen if one.eqn is not None]
    return jaxpr, moved


def projected_bytes(level: Level, loop: Loop) -> int:
    """What a loop reads step by step of products before it: hoisted, they take memory that JAX's autodiff does not."""
    return sum(nbytes(x.aval) for x in loop.xs if _is_projected(level, x))


def _is_projected(level: Level, x: Atom) -> bool:
    """Whether a value is a product, or made of one entry by entry."""
    waiting: list[Atom] = [x]
    for one in waiting:
        eqn = level.maker(one)
        if eqn is None or len(waiting) > MOST_LOOKED_AT:
            continue
        if eqn.primitive.name == "dot_general":
            return True
        if eqn.primitive.name in ENTRYWISE:
            waiting += eqn.invars
    return False


def _affordable(loop: Loop, room: int, machine: Machine) -> tuple[list[Sum], int]:
    """The sums whose factors, stacked, take no more than `room`, those first that save most; and what they take."""
    long = [one for one in find_sums(loop) if one.eqn is not None and is_long(loop, one)]
    saved = {one.carry: seconds_saved(loop, one, machine) for one in long}
    whole = equation_seconds(loop.eqn, machine) if long else 0.0
    chosen: list[Sum] = []
    taken: dict[Var, int] = {}
    for one in sorted(long, key=lambda one: -saved[one.carry]):
        stacks = {x: loop.length * nbytes(x.aval) for x in new_stacks(loop, one)}
        least = LEAST_SECONDS if stacks.keys() <= taken.keys() else max(LEAST_SECONDS, LEAST_SHARE * whole)
        if sum((stacks | taken).values()) <= room and saved[one.carry] >= least:
            taken |= stacks
            chosen.append(one)
    return chosen, sum(taken.values())
