"""What the kernels of a loop's step that XLA shares among threads lose when a part of them is computed before.

A kernel of much work is shared, one of little is not, and which it is depends on its operations, those of
transcendental functions apart: a Runge-Kutta step in float64, of 5,000 entries, is two kernels of seven sines, each on
two cores. With three of the sines computed once, before both, it is four kernels of four sines on one core each, one
after the other, which takes longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aerogel._jax import JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, nbytes
from ..cost.primitives import DEAR
from ..cost.sharing import is_shared
from ..cost.vector_code import seconds_at_last
from ..program import is_var


@dataclass
class KernelWork:
    """What a kernel does.

    Attributes:
        equations: of the kernel, by their results.
        machine: prices.
    """

    machine: Machine
    equations: dict[Var, JaxprEqn] = field(default_factory=dict)

    def do_without(self, eqns: Sequence[JaxprEqn]) -> None:
        """From now on it reads what these make."""
        for eqn in eqns:
            self.equations.pop(eqn.outvars[0], None)

    @property
    def dear_seconds(self) -> float:
        """Of its dear operations, on one core."""
        dear = (eqn for eqn in self.equations.values() if eqn.primitive.name in DEAR)
        return sum(seconds_at_last(eqn, self.machine) for eqn in dear)

    @property
    def cores(self) -> float:
        """How many cores work on it."""
        operations = made = 0
        for v, eqn in self.equations.items():
            operations += v.aval.size * (eqn.primitive.name in ELEMENTWISE and eqn.primitive.name not in DEAR)
            made = nbytes(v.aval)
        read = {x for eqn in self.equations.values() for x in eqn.invars if is_var(x) and x not in self.equations}
        moved = made + sum(nbytes(x.aval) for x in read)
        return self.machine.cores if is_shared(operations, moved, made) else 1.0


def works(eqns: Sequence[JaxprEqn], kernels: Mapping[Var, int], machine: Machine) -> dict[int, KernelWork]:
    """What each kernel does, by its number; `kernels` has for each value those that compute it, as bits."""
    found: dict[int, KernelWork] = {}
    for eqn in eqns:
        for k in bits(kernels.get(eqn.outvars[0], 0)) if eqn.outvars else ():
            found.setdefault(k, KernelWork(machine)).equations[eqn.outvars[0]] = eqn
    return found


def seconds_apart(made: Sequence[JaxprEqn], kernels: Sequence[KernelWork], machine: Machine) -> float:
    """Seconds saved when these equations are not in all of the kernels, but in one that runs before them."""
    own = KernelWork(machine, {eqn.outvars[0]: eqn for eqn in made})
    saved = -own.dear_seconds / own.cores
    for kernel in kernels:
        rest = KernelWork(machine, dict(kernel.equations))
        rest.do_without(made)
        saved += kernel.dear_seconds / kernel.cores - rest.dear_seconds / rest.cores
    return saved


def bits(of: int) -> list[int]:
    """The places of the bits that are set."""
    return [k for k in range(of.bit_length()) if of >> k & 1]
