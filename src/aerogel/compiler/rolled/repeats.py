"""Where a sequence of equations repeats itself: loops that were written in Python and unrolled by tracing."""

from collections.abc import Hashable, Sequence

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal

from ..record import record
from ..same import KEPT_APART, Body, param_key

LONGEST = 400  # equations of one step
NEAREST = 3  # of the places before it where an equation's like stands, those that are tried as the step before


@record
class Run:
    """`count` steps of `period` equations each, from `start` on, and perhaps a part of a step more."""

    start: int
    period: int
    equations: int

    def count(self, offset: int) -> int:
        """How many whole steps there are if the first begins `offset` equations later."""
        return (self.equations - offset) // self.period


def runs(eqns: Sequence[JaxprEqn], fewest: int) -> list[Run]:
    """The stretches in which equations repeat at least `fewest` times, from left to right; none overlap.

    Two equations are alike if only literals, and the places that they slice or pad at, differ. Linear in the number of
    equations: each distance between like ones is followed once.
    """
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(_alike(i, eqn), len(numbers)) for i, eqn in enumerate(eqns)]
    found: list[Run] = []
    last: dict[int, list[int]] = {}
    followed: dict[int, int] = {}  # for each period, up to where it was followed in vain
    free = 0
    for i, key in enumerate(keys):
        before = last.setdefault(key, [])
        for j in reversed(before[-NEAREST:]):
            period = i - j
            if j < free or period > LONGEST or followed.get(period, 0) > i:
                continue
            end = _end(keys, i, period)
            followed[period] = end + 1
            if end - j >= fewest * period:
                start = _start(keys, j, period, free)
                found.append(Run(start, period, end - start))
                free = end
                break
        before.append(i)
    return found


def _end(keys: list[int], i: int, period: int) -> int:
    while i < len(keys) and keys[i] == keys[i - period]:
        i += 1
    return i


def _start(keys: list[int], j: int, period: int, free: int) -> int:
    while j > free and keys[j - 1] == keys[j - 1 + period]:
        j -= 1
    return j


def _alike(place: int, eqn: JaxprEqn) -> Hashable:
    """Equal for equations that may be the same one of two steps."""
    atoms = (*eqn.invars, *eqn.outvars)
    if eqn.effects or eqn.primitive.name in KEPT_APART or any(_jax.explicit_mesh(x.aval) for x in atoms):
        return place
    params = dict(eqn.params)
    name = eqn.primitive.name
    if name == "slice":
        params = {"strides": params["strides"]}
    elif name == "pad":
        params = {"interior": tuple(int(one[2]) for one in params["padding_config"])}
    elif name == "custom_jvp_call":  # each trace makes new functions of its rule: `reroll` compares what they compute
        params = {"call_jaxpr": Body(params["call_jaxpr"])}
    types = [_type(eqn.outvars[0] if _starts_sum(eqn, x) else x) for x in atoms]
    key = (name, *((k, param_key(v)) for k, v in sorted(params.items())), *types, eqn.ctx)
    try:
        hash(key)
    except TypeError:
        return place
    return key


def _starts_sum(eqn: JaxprEqn, x: Atom) -> bool:
    """Whether `x` is the zero that a sum starts with, where it later adds to what it has."""
    if eqn.primitive.name not in ("add", "add_any") or not isinstance(x, Literal):
        return False
    return x.aval.shape == eqn.outvars[0].aval.shape and not x.aval.shape and not x.val


def _type(x: Atom) -> Hashable:
    return isinstance(x, Literal), x.aval, bool(getattr(x.aval, "weak_type", False))
