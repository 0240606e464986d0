"""What several paddings read: at many offsets they are slices of one larger padding, at two the value is written once.

The gradient of a stencil that reads `u[2:]`, `u[:-2]` and `u[1:-1]` puts its cotangent among zeros at each of these
places and adds them up. XLA's CPU backend fuses the paddings into the sum, with conditions for each entry, and where
these are along the last axis all of it is scalar code. One padding it stores by itself, and slices of that are vector
code.
"""

from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine
from ..cost.vector_code import SCALAR_SECONDS
from ..normalize import drop_dead
from ..program import Builder, Makers, Readers, is_var, producers, rename, substitute, users, with_equations
from ..record import record
from ..rules.once import can_be_stored
from ..zeros import is_zero
from .ghosts import Written
from .shifts import LEAST_SECONDS, LIBRARY, ROLL_SECONDS, Sizes, seconds_written

# A sum of two is a condition that LLVM takes out of the innermost loop.
FEWEST_OFFSETS = 3
# Of an operation beside those of the library (`SCALAR_SECONDS`): steps down the gradients of Huber's function or of a
# square of differences, of 2,000 to 40,000 entries, take 0.2 to 0.8 of the time, those of `tanh` and roots 0.09 to 0.2.
SCALAR_OPERATION_SECONDS = 3e-10


@record
class Offsets:
    """A value that is padded at several offsets to arrays of one shape.

    Attributes:
        base: what is padded.
        places: of the paddings.
        before: zeros in front of it, along each axis, in all of them at the most; `behind` it likewise.
        seconds: predicted to be saved in a step; 0 where it is not worth it.
    """

    base: Var
    places: tuple[int, ...]
    before: Sizes
    behind: Sizes
    seconds: float


def offsets(jaxpr: Jaxpr, machine: Machine) -> list[Offsets]:
    """The values of a level that sums read in several paddings along rows, in order."""
    readers = users(jaxpr)
    found: dict[tuple[Var, Sizes], list[int]] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        if _is_term(jaxpr, readers, eqn) and is_var(eqn.invars[0]):
            found.setdefault((eqn.invars[0], eqn.outvars[0].aval.shape), []).append(place)
    priced = (_priced(jaxpr, base, tuple(places), machine) for (base, _), places in found.items())
    return [one for one in priced if one is not None]


def _is_term(jaxpr: Jaxpr, readers: Readers, eqn: JaxprEqn) -> bool:
    """Whether an equation puts zeros around a value, and that is added to something."""
    if eqn.primitive.name != "pad":
        return False
    sides = eqn.params["padding_config"]
    plain = all(low >= 0 and high >= 0 and not inner for low, high, inner in sides) and any(any(one) for one in sides)
    names = {jaxpr.eqns[k].primitive.name for k in readers.get(eqn.outvars[0], ()) if k >= 0}
    among_zeros = plain and is_zero(eqn.invars[1], set()) and can_be_stored(eqn.outvars[0].aval)
    return among_zeros and not names.isdisjoint(("add", "add_any"))


def _priced(jaxpr: Jaxpr, base: Var, places: tuple[int, ...], machine: Machine) -> Offsets | None:
    configs = [jaxpr.eqns[k].params["padding_config"] for k in places]
    in_rows = len({config[-1][:2] for config in configs if config})
    if in_rows < 2:
        return None
    before, behind = (tuple(int(max(c[d][side] for c in configs)) for d in range(base.aval.ndim)) for side in (0, 1))
    entries = int(np.prod([n + a + b for n, a, b in zip(base.aval.shape, before, behind, strict=True)]))
    seconds = ROLL_SECONDS * jaxpr.eqns[places[0]].outvars[0].aval.size * len(set(configs))
    seconds -= seconds_written(base, entries, machine)
    pays = len(set(configs)) >= FEWEST_OFFSETS and seconds > LEAST_SECONDS
    return Offsets(base, places, before, behind, seconds if pays else 0.0)


def summed_in_paddings(jaxpr: Jaxpr, machine: Machine) -> list[Written]:
    """The values of a level that are computed and read by sums of paddings, if one is along rows, in order.

    The gradient of a difference pads a value and its negative, or adds its negative as it is. Of three paddings and
    more one is stored (`offsets`).
    """
    makers, readers = producers(jaxpr), users(jaxpr)
    pads = [eqn for eqn in jaxpr.eqns if _is_term(jaxpr, readers, eqn)]
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


def as_slices(jaxpr: Jaxpr, found: list[Offsets]) -> Jaxpr:
    """The level with each of these values padded once, and its paddings as slices of that."""
    of = {place: one for one in found for place in one.places}
    whole: dict[int, Atom] = {}
    env: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    for place, eqn in enumerate(jaxpr.eqns):
        eqn = rename(eqn, env)
        one, builder = of.get(place), Builder(eqn)
        if one is None:
            eqns.append(eqn)
            continue
        if id(one) not in whole:
            sides = [(low, high, 0) for low, high in zip(one.before, one.behind, strict=True)]
            (whole[id(one)],) = builder.call(lambda x, zero, sides=sides: lax.pad(x, zero, sides), *eqn.invars)
        (out,) = eqn.outvars
        lows = [int(low) for low, _, _ in eqn.params["padding_config"]]
        start = [a - low for a, low in zip(one.before, lows, strict=True)]
        stop = [at + n for at, n in zip(start, out.aval.shape, strict=True)]
        (part,) = builder.call(lambda x, start=start, stop=stop: lax.slice(x, start, stop), whole[id(one)])
        env[out] = builder.as_weak_as(out, part)
        eqns += builder.eqns
    return drop_dead(with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars]))
