"""What several read at the end of a long chain of entrywise work is computed once, and not from its start for each.

XLA's CPU backend fuses entrywise work into everything that reads it. Where a value has to exist (a product reads it) it
is left alone, but not where a reshape or a transpose stands in between, as for each product of [batch, time, features]:
then it is computed anew for each of its readers, from the last array that exists. The gradient that flows back through
the residual blocks of a transformer is such a chain: each block adds to it and reads it for products, and each of them
added up what all blocks before had given, so that the work grew with the square of the number of blocks, and what each
had given stayed in memory.
"""

from dataclasses import dataclass, field

import numpy as np

from aerogel._jax import DropVar, Jaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost.primitives import DEAR, REDUCE
from ..fusion.once import FUSED
from ..program import Makers, Readers, is_var, producers, users
from ..record import record

FLOATS = (np.float32, np.float64)
# For an entry of an array that a kernel adds up: 0.06 to 0.7 ns were measured of kernels of 100 to 230 arrays, and 0.5
# to 4.9 ns where the result is written turned, which reads each against its rows (jaxlib 0.10.2, 65 and 400 kB each).
ENTRY_SECONDS, TURNED_SECONDS = 1e-10, 5e-10
# What is stored is written, read, and keeps other things from being fused: it must save so many times what that takes.
MARGIN = 4.0
LEAST_SECONDS = 2e-6
MOST_ARRAYS = 256  # of longer chains the end alone is looked at, so that a program is read in time linear in its size


# By number of the equation whose result is made by a kernel, or which is one: whether it writes what it reads turned.
Kernels = dict[int, bool]


@record
class Shared:
    """A value that is computed in several kernels, from several arrays.

    Attributes:
        place: of the equation that makes it.
        kernels: how many compute it.
        arrays: how many each of them reads for it.
        seconds: predicted to be saved where it is computed once.
    """

    place: int
    kernels: int
    arrays: int
    seconds: float


def shared_chains(jaxpr: Jaxpr) -> list[Shared]:
    """The values of a level that are better computed once, in order."""
    return _Level(jaxpr).worth_once()


@dataclass
class _Level:
    jaxpr: Jaxpr
    makers: Makers = field(init=False)
    readers: Readers = field(init=False)

    def __post_init__(self) -> None:
        self.makers, self.readers = producers(self.jaxpr), users(self.jaxpr)

    def worth_once(self) -> list[Shared]:
        """From the first equation to the last: what is stored is an array to those that follow."""
        eqns, kernels = self.jaxpr.eqns, self._kernels()
        read: dict[Var, frozenset[Var]] = {}  # by value that XLA fuses, the arrays that it is computed from
        found: list[Shared] = []
        for k, eqn in enumerate(eqns):
            if not _is_fused(eqn):
                continue
            (v,) = eqn.outvars
            if self._is_stored(eqn):
                continue
            arrays = frozenset().union(*(read.get(x, {x}) for x in eqn.invars if is_var(x)))
            if len(arrays) > MOST_ARRAYS:
                continue
            seconds = _saved(v, arrays, kernels[v]) if _may_be_stored(eqn) else 0.0
            if seconds > LEAST_SECONDS:
                found.append(Shared(k, len(kernels[v]), len(arrays), seconds))
            else:
                read[v] = arrays
        return found

    def _kernels(self) -> dict[Var, Kernels]:
        """The kernels in which each value is computed, if those that are computed in several were stored."""
        made: dict[Var, Kernels] = {}
        found: dict[Var, Kernels] = {}
        for k in reversed(range(len(self.jaxpr.eqns))):
            eqn = self.jaxpr.eqns[k]
            if not _is_fused(eqn):
                continue
            (v,) = eqn.outvars
            into: Kernels = {}
            for reader in self.readers.get(v, ()):
                into |= self._kernels_of(reader, k, made)
            found[v] = into
            made[v] = into if len(into) == 1 else {k: False}
        return found

    def _kernels_of(self, reader: int, k: int, made: dict[Var, Kernels]) -> Kernels:
        """Those in which a reader has the result of equation `k` computed, which is one that writes it to memory."""
        eqn = self.jaxpr.eqns[reader] if reader >= 0 else None
        if eqn is None:
            return {k: False}
        if _is_fused(eqn):
            return made.get(eqn.outvars[0], {})
        is_turned = _is_turned(eqn, self.jaxpr.eqns[k].outvars[0])
        return {reader if is_turned or eqn.primitive.name in REDUCE else k: is_turned}

    def _is_stored(self, eqn: JaxprEqn) -> bool:
        """Whether XLA stores a value by itself: it is dear, or is made of two arrays of its size and has to exist."""
        if eqn.primitive.name in DEAR:
            return True
        (v,) = eqn.outvars
        whole = {x for x in eqn.invars if is_var(x) and x.aval.size == v.aval.size}
        return len(whole) > 1 and any(self._is_read_as_it_is(k, v) for k in self.readers.get(v, ()))

    def _is_read_as_it_is(self, reader: int, v: Var) -> bool:
        eqn = self.jaxpr.eqns[reader] if reader >= 0 else None
        if eqn is None:
            return True
        if _is_fused(eqn) or eqn.primitive.name in REDUCE:
            return False
        return eqn.primitive.name != "dot_general" or v.aval.ndim < 3


def _saved(v: Var, arrays: frozenset[Var], kernels: Kernels) -> float:
    """Seconds that are saved where all kernels but one read `v` instead of all arrays that it is computed from."""
    if len(kernels) < 2 and not any(kernels.values()):
        return 0.0
    spared = sum(min(x.aval.size, v.aval.size) for x in arrays) - v.aval.size
    turned = sum(kernels.values())
    saved = ENTRY_SECONDS * (len(kernels) - turned - 1) * spared + TURNED_SECONDS * turned * spared
    return saved - MARGIN * 2 * ENTRY_SECONDS * v.aval.size


def _is_fused(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in FUSED and len(eqn.outvars) == 1 and not isinstance(eqn.outvars[0], DropVar)


def _may_be_stored(eqn: JaxprEqn) -> bool:
    """Whether storing what an equation makes stores no copy of what it reads."""
    (v,) = eqn.outvars
    return eqn.primitive.name in ELEMENTWISE and v.aval.dtype in FLOATS and not v.aval.weak_type


def _is_turned(eqn: JaxprEqn, v: Var) -> bool:
    """Whether a product reads a copy of its left operand with the axes that it sums over last."""
    if eqn.primitive.name != "dot_general" or eqn.invars[0] is not v:
        return False
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    return sorted(contracted) == list(range(len(batch), len(batch) + len(contracted))) and v.aval.ndim > 1
