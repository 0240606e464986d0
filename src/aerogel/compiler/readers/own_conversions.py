"""Bfloat16 numbers that a sum and a gather read are made float32 for each of them.

XLA's CPU backend computes on no bfloat16: sums and extrema, with what is computed entry by entry before them, and
gathers and slices read `float32(x)`. The library that makes the sums takes that along if nobody else reads it (see
`own_broadcasts.py`), and XLA makes the conversions one: all of `x` is written as float32, for the sake of the few
entries that are picked from it (jaxlib 0.10.2). Behind a barrier each has its own.
"""

from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import dtype_name
from ..level import Level
from ..program import Builder, is_var, rename, with_equations
from ..record import record
from .own_broadcasts import LEAST_ENTRIES, LONGEST_CHAIN, ROOTS, TAKEN, TRIVIAL

PARTS = ("gather", "slice", "dynamic_slice")
# What reads more than one in so many entries could as well read what was written.
SMALLER = 2


@record
class Picked:
    """A value that a sum reads, and parts of which are read by others.

    Attributes:
        value: the value.
        places: of what reads the parts.
        written: the bytes that XLA writes for them.
    """

    value: Var
    places: frozenset[int]
    written: int


def picked_of_summed(level: Level) -> list[Picked]:
    """The values of bfloat16 that are stored, and of which sums and parts are read."""
    found: list[Picked] = []
    for x in dict.fromkeys(eqn.invars[0] for eqn in level.eqns if eqn.primitive.name in PARTS):
        if not is_var(x) or dtype_name(x) != "bfloat16" or x.aval.size < LEAST_ENTRIES or not _is_stored(level, x):
            continue
        readers = [k for k in level.readers(x) if k >= 0]
        places = frozenset(k for k in readers if _is_part(level.eqns[k], x))
        if places and any(_is_summed(level, k) for k in readers if k not in places):
            found.append(Picked(x, places, 4 * x.aval.size))
    return found


def picked_apart(jaxpr: Jaxpr, found: list[Picked]) -> Jaxpr:
    """A level in which what reads parts of such values reads them behind barriers."""
    values = {place: one.value for one in found for place in one.places}
    eqns: list[JaxprEqn] = []
    for place, eqn in enumerate(jaxpr.eqns):
        if place in values:
            builder = Builder(eqn)
            (own,) = builder.call(lax.optimization_barrier, values[place])
            eqns += builder.eqns
            eqn = rename(eqn, {values[place]: own})
        eqns.append(eqn)
    return with_equations(jaxpr, eqns)


def _is_stored(level: Level, x: Var) -> bool:
    """Whether a value is no part of the kernels that read it."""
    maker = level.maker(x)
    return maker is None or not (maker.primitive.name in ELEMENTWISE or maker.primitive.name in TAKEN)


def _is_part(eqn: JaxprEqn, x: Var) -> bool:
    is_small = eqn.primitive.name in PARTS and SMALLER * eqn.outvars[0].aval.size <= x.aval.size
    return is_small and eqn.invars[0] is x and all(y is not x for y in eqn.invars[1:])


def _is_summed(level: Level, place: int) -> bool:
    """Whether an equation computes what a sum or an extremum reads, entry by entry."""
    waiting, seen = [place], set[int]()
    while waiting and len(seen) < LONGEST_CHAIN:
        k = waiting.pop()
        eqn = level.eqns[k]
        if eqn.primitive.name not in TAKEN or len(eqn.outvars) != 1 or not isinstance(eqn.outvars[0], Var):
            continue
        seen.add(k)
        readers = [j for j in level.readers(eqn.outvars[0]) if j >= 0]
        computes = any(level.eqns[j].primitive.name in TAKEN - TRIVIAL for j in seen)
        if computes and any(level.eqns[j].primitive.name in ROOTS for j in readers):
            return True
        waiting += [j for j in readers if j not in seen]
    return False
