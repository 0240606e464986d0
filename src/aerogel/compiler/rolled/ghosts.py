"""What a step pads with entries of its own, and reads at several places, is written once.

`jnp.pad(u, 1, mode="wrap")`, "edge" and "reflect" put ghost cells around a state: they join it with slices of itself.
XLA's CPU backend fuses what joins them into each of the slices that a stencil reads, and where a seam is along the last
axis, which is the innermost loop, all of that is scalar code. (Paddings with zeros it stores by itself.) The gradient
of what reads neighbours is a sum of paddings, into which it fuses what they pad, as scalar code too.
"""

from collections.abc import Iterator
from typing import Any

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import shape_of
from ..cost import Machine
from ..program import Makers, Readers, is_var, producers, users
from ..record import record
from ..rules.once import can_be_stored
from .shifts import (
    LEAST_SECONDS,
    LIBRARY,
    MANY_ROLLS,
    ROLL_SECONDS,
    SCALAR_SECONDS,
    SHORTEST_OF_MUCH,
    computes_much,
    is_computed_with,
    seconds_written,
)

# Of shorter rows, many slices must be read, or much computed: five of 500 x 16 entries took 1.08 of the time if they
# were stored, with a cube or more 0.34 to 0.43; of 24 x 24 to 1,000 x 48, 0.7 to 0.98.
SHORTEST_ROW = 24
# Of an operation beside those of the library (`SCALAR_SECONDS`): steps down the gradients of Huber's function or of a
# square of differences, of 2,000 to 40,000 entries, take 0.2 to 0.8 of the time, those of `tanh` and roots 0.09 to 0.2.
SCALAR_OPERATION_SECONDS = 3e-10


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
        slices = list(_slices(jaxpr, readers, v)) if _is_joined_in_rows(jaxpr, makers, v) else []
        if len(slices) > 1 and None not in slices:
            found.append(_priced(jaxpr, place, [jaxpr.eqns[k].outvars[0] for k in slices if k is not None], machine))
    return found


def _slices(jaxpr: Jaxpr, readers: Readers, v: Var) -> Iterator[int | None]:
    """The places where parts of a value, or of what is made of it entry by entry, are read; None for other readers.

    A step may hand the value on: a gradient reads it in the stack of all steps.
    """
    waiting, seen = [v], {v}
    while waiting:
        x = waiting.pop()
        for k in readers.get(x, ()):
            if k < 0:
                continue
            eqn = jaxpr.eqns[k]
            if eqn.primitive.name == "slice":
                yield k if is_computed_with(jaxpr, readers, eqn.outvars[0]) else None
            elif eqn.primitive.name in ELEMENTWISE and shape_of(eqn.outvars[0]) == shape_of(v):
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


def _priced(jaxpr: Jaxpr, place: int, slices: list[Var], machine: Machine) -> Written:
    (v,) = jaxpr.eqns[place].outvars
    seconds = ROLL_SECONDS * sum(x.aval.size for x in slices) - seconds_written(v, v.aval.size, machine)
    shortest = SHORTEST_OF_MUCH if computes_much(jaxpr, v.aval.size, slices[0].aval.size) else SHORTEST_ROW
    are_seams = len(slices) >= MANY_ROLLS or shape_of(v)[-1] >= shortest
    what = f"a padded value of a step is written once, for {len(slices)} slices"
    return Written(place, what, seconds if are_seams and seconds > LEAST_SECONDS else 0.0)


def summed_in_paddings(jaxpr: Jaxpr, machine: Machine) -> list[Written]:
    """The values of a level that are computed and read by sums of paddings, if one is along rows, in order.

    The gradient of a difference pads a value and its negative, or adds its negative as it is. Of three paddings and
    more one is stored (`offsets.py`).
    """
    makers, readers = producers(jaxpr), users(jaxpr)
    pads = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "pad" and _is_summed(jaxpr, readers, eqn)]
    sides: dict[Var, set[Any]] = {}
    for eqn in pads if any(any(eqn.params["padding_config"][-1][:2]) for eqn in pads) else ():
        x = eqn.invars[0]
        if is_var(x) and x in makers and jaxpr.eqns[makers[x]].primitive.name == "neg":
            (x,) = jaxpr.eqns[makers[x]].invars
        is_piece = 2 * eqn.invars[0].aval.size <= eqn.outvars[0].aval.size  # of what was split: it is joined again
        if is_var(x) and not is_piece and can_be_stored(x.aval):
            sides.setdefault(x, set()).add(eqn.params["padding_config"])
    found: list[Written] = []
    for x, configs in sides.items():
        names = _computed(jaxpr, makers, x)
        dear = sum(name in LIBRARY for name in names)
        # XLA fuses what one reads, however dear.
        several = len(configs) == 2 or (len(configs) == 1 and dear and len(readers[x]) > 1)
        if names and several:
            seconds = x.aval.size * (dear * SCALAR_SECONDS + len(names) * SCALAR_OPERATION_SECONDS)
            seconds -= seconds_written(x, x.aval.size, machine)
            what = "what a step pads is written once, before it is padded"
            found.append(Written(makers[x], what, seconds if seconds > LEAST_SECONDS else 0.0))
    return found


def _is_summed(jaxpr: Jaxpr, readers: Readers, eqn: JaxprEqn) -> bool:
    names = {jaxpr.eqns[k].primitive.name for k in readers.get(eqn.outvars[0], ()) if k >= 0}
    padded = any(any(sides[:2]) for sides in eqn.params["padding_config"])
    return padded and not names.isdisjoint(("add", "add_any"))


def _computed(jaxpr: Jaxpr, makers: Makers, v: Var) -> list[str]:
    """The operations by which a value is computed entry by entry."""
    waiting, seen = [v], set[Var]()
    while waiting:
        x = waiting.pop()
        eqn = jaxpr.eqns[makers[x]] if x in makers and x not in seen else None
        if eqn is not None and eqn.primitive.name in ELEMENTWISE and x.aval.size == v.aval.size:
            seen.add(x)
            waiting += filter(is_var, eqn.invars)
    return [jaxpr.eqns[makers[x]].primitive.name for x in seen]
