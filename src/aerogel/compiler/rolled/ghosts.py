"""What a step pads with entries of its own, and reads at several places, is written once.

`jnp.pad(u, 1, mode="wrap")`, "edge" and "reflect" put ghost cells around a state: they join it with slices of itself.
XLA's CPU backend fuses what joins them into each of the slices that a stencil reads, and where a seam is along the last
axis, which is the innermost loop, all of that is scalar code. (Paddings with zeros it stores by itself.)
"""

from collections.abc import Iterator

from aerogel._jax import Jaxpr, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import shape_of
from ..cost import Machine
from ..program import Makers, Readers, is_var, producers, users
from ..record import record
from ..rules.once import can_be_stored
from .shifts import LEAST_OF_MANY, MANY_ROLLS, ROLL_SECONDS, is_computed_with, seconds_written

# Of shorter rows, many slices must be read: five of 1,000 x 16 entries took 1.1 of the time if they were stored, nine
# 0.64, five of 64 x 64 0.77.
SHORTEST_ROW = 64


@record
class Ghosts:
    """A value with entries of its own around it.

    Attributes:
        value: what is padded.
        place: of the equation that makes it.
        slices: how many are read.
        seconds: predicted to be saved in a step; 0 where it is not worth it.
    """

    value: Var
    place: int
    slices: int
    seconds: float


def ghosts(jaxpr: Jaxpr, machine: Machine) -> list[Ghosts]:
    """The values of a level that are joined along the last axis and read in slices by entrywise kernels, in order."""
    makers, readers = producers(jaxpr), users(jaxpr)
    found: list[Ghosts] = []
    for place, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name != "concatenate" or not can_be_stored(eqn.outvars[0].aval):
            continue
        (v,) = eqn.outvars
        slices = list(_slices(jaxpr, readers, v)) if _is_joined_in_rows(jaxpr, makers, v) else []
        if len(slices) > 1 and None not in slices:
            found.append(_priced(v, place, [jaxpr.eqns[k].outvars[0] for k in slices if k is not None], machine))
    return found


def _slices(jaxpr: Jaxpr, readers: Readers, v: Var) -> Iterator[int | None]:
    """The places where parts of a value, or of what is made of it entry by entry, are read; None for other readers."""
    waiting, seen = [v], {v}
    while waiting:
        x = waiting.pop()
        for k in readers.get(x, ()):
            eqn = jaxpr.eqns[k] if k >= 0 else None
            if eqn is not None and eqn.primitive.name == "slice":
                yield k if is_computed_with(jaxpr, readers, eqn.outvars[0]) else None
            elif eqn is not None and eqn.primitive.name in ELEMENTWISE and shape_of(eqn.outvars[0]) == shape_of(v):
                waiting += {eqn.outvars[0]} - seen
                seen.add(eqn.outvars[0])
            else:
                yield None


def _is_joined_in_rows(jaxpr: Jaxpr, makers: Makers, v: Var) -> bool:
    """Whether a value, or the largest of the pieces that it is joined of, has seams along its last axis."""
    eqn = jaxpr.eqns[makers[v]]
    while eqn.primitive.name == "concatenate":
        if eqn.params["dimension"] == len(shape_of(v)) - 1:
            return True
        largest = max(eqn.invars, key=lambda x: x.aval.size)
        if not is_var(largest) or largest not in makers:
            return False
        eqn = jaxpr.eqns[makers[largest]]
    return False


def _priced(v: Var, place: int, slices: list[Var], machine: Machine) -> Ghosts:
    seconds = ROLL_SECONDS * sum(x.aval.size for x in slices) - seconds_written(v, v.aval.size, machine)
    are_seams = len(slices) >= MANY_ROLLS or shape_of(v)[-1] >= SHORTEST_ROW
    return Ghosts(v, place, len(slices), seconds if are_seams and seconds > LEAST_OF_MANY else 0.0)
