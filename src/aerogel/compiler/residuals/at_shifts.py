"""What values that a loop's readers compute again cost where a reader's step reads them shifted.

XLA fuses what a step makes into what reads it: into both sides of a roll, say, the padding of one of which is scalar
code with a branch. A step of a binomial tree whose gradient made two quotients again took 1.3 of its time.
"""

from collections.abc import Collection, Sequence

from aerogel._jax import Atom, JaxprEqn, Var

from ..cost.primitives import ELEMENTWISE_FLOPS
from ..fusion.once import SHIFTED_SECONDS
from ..kernels.shifted import entries_again
from ..level import Level
from ..loop import Loop
from ..program import is_var


def entries_at_shifts(needed: dict[Var, Atom], readers: Sequence[Loop]) -> dict[Var, int]:
    """How many entries of needed values are computed once more for shifts, if the readers compute them."""
    found: dict[Var, int] = {}
    for reader in readers:
        level = Level(reader.body)
        for x, v in zip(reader.xs, reader.body_xs, strict=True):
            made = needed[x] if is_var(x) and x in needed else None
            entries = entries_again(level, v) if made is not None and is_var(made) else 0
            if made is not None and is_var(made) and entries:
                found[made] = found.get(made, 0) + entries
    return found


def behind_shifts(loop: Loop, shifted: dict[Var, int], stored: Collection[Var]) -> dict[Var, int]:
    """The same of all values of the body, if these are stored."""
    found = {v: entries for v, entries in shifted.items() if v not in stored}
    for eqn in reversed(loop.body.eqns) if found else ():
        entries = max((found.get(v, 0) for v in eqn.outvars), default=0)
        found.update((x, max(entries, found.get(x, 0))) for x in eqn.invars if is_var(x) and x not in stored)
    return found


def shifted_seconds(eqn: JaxprEqn, shifted: dict[Var, int]) -> float:
    """Seconds of an equation for the entries that `shifted` has of its results."""
    entries = max((shifted.get(v, 0) for v in eqn.outvars), default=0)
    return entries * ELEMENTWISE_FLOPS.get(eqn.primitive.name, 0) * SHIFTED_SECONDS
