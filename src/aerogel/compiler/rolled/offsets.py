"""Paddings of one value at several offsets are slices of one larger padding.

The gradient of a stencil that reads `u[2:]`, `u[:-2]` and `u[1:-1]` puts its cotangent among zeros at each of these
places and adds them up. XLA's CPU backend fuses the paddings into the sum, with conditions for each entry, and where
these are along the last axis all of it is scalar code. One padding it stores by itself, and slices of that are vector
code.
"""

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..cost import Machine
from ..normalize import drop_dead
from ..program import Builder, Readers, is_var, rename, substitute, users, with_equations
from ..record import record
from ..rules.once import can_be_stored
from ..zeros import is_zero
from .shifts import LEAST_SECONDS, ROLL_SECONDS, Sizes, seconds_written

# A sum of two is a condition that LLVM takes out of the innermost loop.
FEWEST_OFFSETS = 3


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
        if eqn.primitive.name == "pad" and _is_term(jaxpr, readers, eqn) and is_var(eqn.invars[0]):
            found.setdefault((eqn.invars[0], eqn.outvars[0].aval.shape), []).append(place)
    priced = (_priced(jaxpr, base, tuple(places), machine) for (base, _), places in found.items())
    return [one for one in priced if one is not None]


def _is_term(jaxpr: Jaxpr, readers: Readers, eqn: JaxprEqn) -> bool:
    """Whether zeros are put around a value, and that is added to something."""
    sides = eqn.params["padding_config"]
    plain = all(low >= 0 and high >= 0 and not inner for low, high, inner in sides) and can_be_stored(
        eqn.outvars[0].aval
    )
    names = {jaxpr.eqns[k].primitive.name for k in readers.get(eqn.outvars[0], ()) if k >= 0}
    return plain and is_zero(eqn.invars[1], set()) and not names.isdisjoint(("add", "add_any"))


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
