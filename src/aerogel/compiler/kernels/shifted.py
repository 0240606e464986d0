"""What XLA computes again for an element of a value because it is read, or reads, at shifted places.

It fuses `where(mask, roll(x, 1), x)` with what makes `x`, which it then computes for each of the two, as scalar code.
"""

from aerogel._jax import JaxprEqn, Var

from ..axes.elementwise import NAMES
from ..cost.primitives import ELEMENTWISE_FLOPS
from ..level import Level
from ..program import is_var

SHIFTS = frozenset("concatenate slice pad rev".split())
FUSED = frozenset((*NAMES, "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", *SHIFTS))
MOST = 256  # equations that are counted


def flops_again(level: Level, value: Var) -> int:
    """For one element of `value`, if it is stored nowhere: what whoever reads it computes because of shifts."""
    return flops_behind_shifts(level, value) + len(_shifts_before(level, value)) * _flops(level, value)


def _shifts_before(level: Level, value: Var) -> set[int]:
    """The places of the shifts that read `value`, or what it is fused into."""
    found: set[int] = set()
    waiting, seen = [value], {value}
    while waiting and len(seen) < MOST:
        x = waiting.pop()
        for place in level.readers(x):
            eqn = level.eqns[place] if place >= 0 else None
            if eqn is None or eqn.primitive.name not in FUSED:
                continue
            if _is_shift(eqn):
                found.add(place)
                continue
            waiting += [v for v in eqn.outvars if v not in seen]
            seen.update(eqn.outvars)
    return found


def _flops(level: Level, value: Var) -> int:
    """For one element of `value`: of what is fused into it."""
    return _counted(level, value, 0)


def flops_behind_shifts(level: Level, value: Var) -> int:
    """For one element of `value`: of what is fused into it, what lies behind shifts, once for each of them."""
    return _counted(level, value, -1)


def _counted(level: Level, value: Var, start: int) -> int:
    """Flops of what is fused into `value`; where `start` is negative, only those behind shifts."""
    total = 0
    waiting: list[tuple[Var, int]] = [(value, start)]
    seen = set(waiting)
    while waiting and len(seen) < MOST:
        x, shift = waiting.pop()
        place = level.made_by.get(x, -1)
        if place < 0 or level.eqns[place].primitive.name not in FUSED:
            continue
        eqn = level.eqns[place]
        if shift < 0 and _is_shift(eqn):
            shift = place
        total += ELEMENTWISE_FLOPS.get(eqn.primitive.name, 0) if shift >= 0 else 0
        new = {(y, shift) for y in eqn.invars if is_var(y)} - seen
        seen |= new
        waiting += sorted(new, key=lambda pair: level.made_by.get(pair[0], -1))
    return total


def _is_shift(eqn: JaxprEqn) -> bool:
    """Whether an equation reads most of an operand at other places; one that reads a part reads nothing twice."""
    return eqn.primitive.name in SHIFTS and 2 * eqn.outvars[0].aval.size > eqn.invars[0].aval.size
