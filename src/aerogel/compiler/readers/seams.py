"""What an array's seams are made of is computed once, and not once for each side of them.

The gradient of differences is a sum of paddings, and `jnp.roll` joins two slices. XLA's CPU backend fuses what they
read into them, and computes it for each: as scalar code where the seam is along the last axis, which is the innermost
loop. What it knows to be dear (a quotient, an exponential) it stores where several read it; a product of a reciprocal
square root it takes for cheap. In loops, `once.py` sees to that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, nbytes
from ..cost.primitives import DEAR
from ..cost.seconds import transfer_seconds
from ..cost.vector_code import SCALAR_SECONDS
from ..fusion.once import FUSED, READERS
from ..program import Builder, Makers, Readers, is_var, producers, rename, substitute, users, with_equations
from ..record import record
from ..rules.once import once

# Dear, and not known to XLA as such.
ROOTS = frozenset(("sqrt", "rsqrt"))
CHEAP = frozenset(ELEMENTWISE) - (DEAR - ROOTS)
# One value of 512 x 512, 64 x 64 x 64 and 10,000 entries takes 0.3 to 0.5 of the time if it is stored.
# What is stored is written, read, and keeps other things from being fused: cheap work takes up to 2.5 of the time, and
# a square root of 1,000,000 entries in one row 1.2.
MARGIN = 9.0
LEAST_SECONDS = 5e-6
FLOATS = (np.float32, np.float64)


@record
class Seam:
    """A value that several paddings or rolls read.

    Attributes:
        place: of the equation that makes it.
        sides: how many read it.
        seconds: predicted to be saved where it is computed once; 0 where it is not worth it.
    """

    place: int
    sides: int
    seconds: float


def seams(jaxpr: Jaxpr, machine: Machine) -> list[Seam]:
    """The values of a level that seams are made of, which are dear to compute, in order."""
    found = list(_Level(jaxpr).candidates())
    if not any(is_innermost for *_, is_innermost in found):
        return []
    others = (sum(sides for _, sides, *_ in found) - 1) / len(found)
    fresh = sum(nbytes(jaxpr.eqns[place].outvars[0].aval) for place, *_ in found) > machine.fresh_bytes // 2
    made = []
    for place, sides, dear, _ in found:
        aval = jaxpr.eqns[place].outvars[0].aval
        size = nbytes(aval)
        seconds = others * dear * aval.size * SCALAR_SECONDS
        written = MARGIN * 2 * transfer_seconds(size, size, machine)
        written += size * machine.seconds_per_fresh_byte if fresh else 0.0
        pays = seconds > max(LEAST_SECONDS, written)
        made.append(Seam(place, sides, seconds if pays else 0.0))
    return made


@dataclass
class _Level:
    jaxpr: Jaxpr
    makers: Makers = field(init=False)
    readers: Readers = field(init=False)

    def __post_init__(self) -> None:
        self.makers, self.readers = producers(self.jaxpr), users(self.jaxpr)

    def candidates(self) -> Iterator[tuple[int, int, int, bool]]:
        """Place, number of sides, dear operations, and whether a seam is along the last axis."""
        taken: set[Var] = set()
        for k, eqn in enumerate(self.jaxpr.eqns):
            v = eqn.outvars[0] if len(eqn.outvars) == 1 else None
            if v is None or isinstance(v, DropVar) or eqn.primitive.name not in CHEAP:
                continue
            if getattr(v.aval, "dtype", None) not in FLOATS or v.aval.weak_type:
                continue
            sides = list(self._sides(v))
            dear = self._dear(v, taken) if len(sides) > 1 else 0
            if dear:
                taken.add(v)
                yield k, len(sides), dear, any(sides)

    def _sides(self, v: Var, through: bool = True) -> Iterator[bool]:
        """For each seam that a value is read for, whether it is along the last axis."""
        for k in self.readers.get(v, []):
            eqn = self.jaxpr.eqns[k] if k >= 0 else None
            name = "" if eqn is None else eqn.primitive.name
            if eqn is not None and name == "pad" and any(low or high for low, high, _ in eqn.params["padding_config"]):
                yield eqn.params["padding_config"][-1][:2] != (0, 0)
            elif eqn is not None and name == "slice":
                yield from self._joined(eqn)
            elif eqn is not None and name == "neg" and through:
                yield from self._sides(eqn.outvars[0], False)

    def _joined(self, eqn: JaxprEqn) -> Iterator[bool]:
        (piece,) = eqn.outvars
        for k in self.readers.get(piece, []):
            reader = self.jaxpr.eqns[k] if k >= 0 else None
            if reader is not None and reader.primitive.name == "concatenate":
                yield reader.params["dimension"] == len(piece.aval.shape) - 1

    def _dear(self, v: Var, taken: set[Var]) -> int:
        """How many dear operations XLA would repeat to make a value, from what exists on."""
        waiting, seen, dear = [v], set[Var](), 0
        while waiting:
            x = waiting.pop()
            if x in seen or x in taken or x not in self.makers or (x is not v and self._exists(x)):
                continue
            seen.add(x)
            eqn = self.jaxpr.eqns[self.makers[x]]
            if eqn.primitive.name not in FUSED | {"slice"}:
                continue
            dear += eqn.primitive.name in DEAR and x.aval.size == v.aval.size
            waiting += [y for y in eqn.invars if is_var(y)]
        return dear

    def _exists(self, x: Var) -> bool:
        """Whether XLA stores a value, for a result or for what is not fused."""
        return any(k < 0 or self.jaxpr.eqns[k].primitive.name not in READERS for k in self.readers.get(x, []))


def stored(jaxpr: Jaxpr, places: set[int]) -> Jaxpr:
    """The level with what some equations make computed once."""
    eqns: list[JaxprEqn] = []
    env = {}
    for k, eqn in enumerate(jaxpr.eqns):
        eqns.append(rename(eqn, env))
        if k in places:
            (v,), builder = eqn.outvars, Builder(eqn)
            env[v] = builder.as_weak_as(v, builder.call(once, v)[0])
            eqns += builder.eqns
    return with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])
