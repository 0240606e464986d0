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

from .cost import Machine, nbytes
from .cost.primitives import DEAR, REDUCE
from .once import FUSED
from .program import Makers, Readers, is_var, producers, users

FLOATS = (np.float32, np.float64)
# Bytes that are read again and again come from the cache as those do that would be read instead: what is stored must
# save so many times what it is written and read for. A chain of two or three arrays is read as fast as their sum.
MARGIN = 2.0
LEAST_SECONDS = 2e-6


@dataclass(frozen=True)
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


def shared_chains(jaxpr: Jaxpr, machine: Machine) -> list[Shared]:
    """The values of a level that are better computed once, in order."""
    return _Level(jaxpr, machine).worth_once()


@dataclass
class _Level:
    jaxpr: Jaxpr
    machine: Machine
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
            seconds = self._saved(v, arrays, kernels[v]) if _may_be_stored(v) and v in kernels else 0.0
            if seconds > LEAST_SECONDS:
                found.append(Shared(k, kernels[v], len(arrays), seconds))
            else:
                read[v] = arrays
        return found

    def _saved(self, v: Var, arrays: frozenset[Var], kernels: int) -> float:
        """Seconds by which storing beats reading all arrays in each kernel; both read them once."""
        read = sum(min(nbytes(x.aval), nbytes(v.aval)) for x in arrays) * (kernels - 1)
        return (read - MARGIN * (kernels + 1) * nbytes(v.aval)) / self.machine.cache_bytes_per_second

    def _kernels(self) -> dict[Var, int]:
        """In how many kernels each value is computed, if those that are computed in several were stored."""
        made: dict[Var, set[int]] = {}
        found: dict[Var, int] = {}
        for k in reversed(range(len(self.jaxpr.eqns))):
            eqn = self.jaxpr.eqns[k]
            if not _is_fused(eqn):
                continue
            (v,) = eqn.outvars
            into: set[int] = set()
            for reader in self.readers.get(v, ()):
                into |= self._kernels_of(reader, v, made)
            found[v] = len(into)
            made[v] = into if len(into) == 1 else {k}
        return found

    def _kernels_of(self, reader: int, v: Var, made: dict[Var, set[int]]) -> set[int]:
        """Those that a reader computes `v` in; -1 is the one that writes it to memory."""
        eqn = self.jaxpr.eqns[reader] if reader >= 0 else None
        if eqn is None:
            return {-1}
        if _is_fused(eqn):
            return made.get(eqn.outvars[0], set())
        if eqn.primitive.name in REDUCE:
            return {reader}
        return {reader} if _is_turned(eqn, v) else {-1}

    def _is_stored(self, eqn: JaxprEqn) -> bool:
        """Whether XLA stores a value by itself: it is dear, or it is made of two arrays of its size and has to exist."""
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


def _is_fused(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in FUSED and len(eqn.outvars) == 1 and not isinstance(eqn.outvars[0], DropVar)


def _may_be_stored(v: Var) -> bool:
    return getattr(v.aval, "dtype", None) in FLOATS and not v.aval.weak_type


def _is_turned(eqn: JaxprEqn, v: Var) -> bool:
    """Whether a product reads a copy of its left operand with the axes that it sums over last."""
    if eqn.primitive.name != "dot_general" or eqn.invars[0] is not v:
        return False
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    return sorted(contracted) == list(range(len(batch), len(batch) + len(contracted))) and v.aval.ndim > 1
