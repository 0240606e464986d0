"""What a step pads with entries of its own, and reads at several places, is written once.

`jnp.pad(u, 1, mode="wrap")`, "edge" and "reflect" put ghost cells around a state: they join it with slices of itself.
XLA's CPU backend fuses what joins them into each of the slices that a stencil reads, and where a seam is along the last
axis, which is the innermost loop, all of that is scalar code. (Paddings with zeros it stores by itself.)
"""

from aerogel._jax import Jaxpr, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import shape_of
from ..cost import Machine
from ..program import Makers, Readers, is_var, producers, users
from ..record import record
from ..rules.once import can_be_stored
from .shifts import (
    LEAST_SECONDS,
    MANY_ROLLS,
    ROLL_SECONDS,
    SHORTEST_OF_MUCH,
    computes_much,
    is_computed_with,
    seconds_written,
)

# Of shorter rows, many slices must be read, or much computed: five of 500 x 16 entries took 1.08 of the time if they
# were stored, with a cube or more 0.34 to 0.43; of 24 x 24 to 1,000 x 48, 0.7 to 0.98.
SHORTEST_ROW = 24


@record
class Written:
    """A value that is better written once in a step.

    Attributes:
        place: of the equation that makes it.
        what: what is done, in words.
        seconds: predicted to be saved in a step; 0 where it is not worth it.
    """

    place: int
    what: str
    seconds: float


def ghosts(jaxpr: Jaxpr, machine: Machine) -> list[Written]:
    """The values of a level that are joined along the last axis and read in slices by entrywise kernels, in order."""
    makers, readers = producers(jaxpr), users(jaxpr)
    found: list[Written] = []
    for place, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name != "concatenate" or not can_be_stored(eqn.outvars[0].aval):
            continue
        (v,) = eqn.outvars
        slices = _slices(jaxpr, readers, v) if _is_joined_in_rows(jaxpr, makers, v) else None
        if slices is not None and len(slices) > 1:
            found.append(_priced(jaxpr, place, slices, machine))
    return found


def _slices(jaxpr: Jaxpr, readers: Readers, v: Var) -> list[Var] | None:
    """The parts that are read of a value, or of what is made of it entry by entry; None if anything else is read.

    A step may hand the value on: a gradient reads it in the stack of all steps.
    """
    waiting, seen, found = [v], {v}, list[Var]()
    while waiting:
        x = waiting.pop()
        for eqn in (jaxpr.eqns[k] for k in readers.get(x, ()) if k >= 0):
            if eqn.primitive.name == "slice" and is_computed_with(jaxpr, readers, eqn.outvars[0]):
                found.append(eqn.outvars[0])
            elif eqn.primitive.name in ELEMENTWISE and shape_of(eqn.outvars[0]) == shape_of(v):
                waiting += {eqn.outvars[0]} - seen
                seen.add(eqn.outvars[0])
            else:
                return None
    return found


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


def _priced(jaxpr: Jaxpr, place: int, slices: list[Var], machine: Machine) -> Written:
    (v,) = jaxpr.eqns[place].outvars
    seconds = ROLL_SECONDS * sum(x.aval.size for x in slices) - seconds_written(v, v.aval.size, machine)
    shortest = SHORTEST_OF_MUCH if computes_much(jaxpr, v.aval.size, slices[0].aval.size) else SHORTEST_ROW
    are_seams = len(slices) >= MANY_ROLLS or shape_of(v)[-1] >= shortest
    what = f"a padded value of a step is written once, for {len(slices)} slices"
    return Written(place, what, seconds if are_seams and seconds > LEAST_SECONDS else 0.0)
