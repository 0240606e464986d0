"""Rows that XLA's library works on from what is read to a last sum: nothing in between is stored.

The library (`readers/own_broadcasts.py`) takes along what reads a sum if all who read it are taken along, back to the
rows, too, where there are 4096 or more: the cross-entropy of a `log_softmax` with soft targets is one call, and so are
an entropy and a Brier score.
"""

import math

from aerogel._jax import Jaxpr, Var

from ..axes.rebind import dtype_name
from ..cost.primitives import VIEW
from ..level import Level
from ..program import remembered
from ..readers.own_broadcasts import LEAST_ENTRIES, ROOTS, TAKEN, TRIVIAL, TYPES

Ends = frozenset[int]  # the places of what is stored that a value is computed for
# Sums of so few entries are slow within a call: those over the coordinates of points are taken apart, or cut.
FEWEST_SUMMED = 33
ALONG = TAKEN | VIEW


def is_in_one_call(level: Level, v: Var) -> bool:
    """Whether a value is computed within one call, whatever reads it on the way, and that stores much less."""
    maker = level.maker(v)
    if maker is None or maker.primitive.name not in TAKEN:
        return False
    ends = _all_ends(level.jaxpr)[v]
    if len(ends) != 1:
        return False
    (end,) = ends
    return sum(out.aval.size for out in level.eqns[end].outvars) * FEWEST_SUMMED <= v.aval.size


@remembered
def _all_ends(jaxpr: Jaxpr) -> dict[Var, Ends]:
    """Those of all values that a level makes; two of a value with more, so that this is linear."""
    level, known = Level(jaxpr), dict[Var, Ends]()
    for place in range(len(level.eqns) - 1, -1, -1):
        for out in level.eqns[place].outvars:
            if isinstance(out, Var):
                known[out] = frozenset(sorted(_ends(level, out, place, known))[:2])
    return known


def _ends(level: Level, v: Var, made_by: int, known: dict[Var, Ends]) -> Ends:
    """Those of a value: the place that makes it, where it is stored for a reader."""
    found: set[int] = set()
    for place in level.readers(v):
        eqn = level.eqns[place]
        if place < 0 or len(eqn.outvars) != 1 or dtype_name(eqn.outvars[0]) not in TYPES:
            found.add(made_by)
            continue
        (out,), name = eqn.outvars, eqn.primitive.name
        goes_on = isinstance(out, Var) and (out.aval.size >= LEAST_ENTRIES or name in VIEW | TRIVIAL)
        if name in ROOTS:
            summed = math.prod(eqn.invars[0].aval.shape[axis] for axis in eqn.params["axes"])
            found |= known[out] if goes_on and summed >= FEWEST_SUMMED else {place}
        else:
            found |= known[out] if goes_on and name in ALONG else {made_by}
    return frozenset(found)
