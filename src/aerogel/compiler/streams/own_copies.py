"""Each reader of a large value that costs nothing gets one of its own: blocks of one value lie along one axis.

A loss in both directions (CLIP's) subtracts one diagonal from the softmax of its logits and from that of their
transpose. The diagonal along rows and the one along columns are then two values, and the logits are read along rows.
"""

from collections import defaultdict

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..level import Edit, Level, apply_edits
from ..program import is_var
from .streams import REDUCTIONS, is_cheap

OTHERS = REDUCTIONS | {"transpose"}  # what they give is another value, not the same one again
MOST_EQUATIONS = 12
MOST_READERS = 4


def with_own_copies(jaxpr: Jaxpr, least_bytes: int) -> Jaxpr:
    """A level in which such values of at least so many bytes have one reader; the same object where nothing is turned.

    The second reader and each one after it reads copies of the equations that made the value.
    """
    if not any(eqn.primitive.name == "transpose" and nbytes(eqn.outvars[0].aval) >= least_bytes for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(jaxpr)
    made: dict[Var, tuple[int, ...]] = {}  # the places of the equations that make a value of small ones
    for place, eqn in enumerate(jaxpr.eqns):
        if not is_cheap(eqn) or eqn.primitive.name in OTHERS or len(eqn.outvars) > 1:
            continue
        large = [x for x in eqn.invars if is_var(x) and nbytes(x.aval) >= least_bytes]
        if nbytes(eqn.outvars[0].aval) >= least_bytes and all(x in made for x in large):
            places = {place}.union(*(made[x] for x in large))
            if len(places) <= MOST_EQUATIONS:
                made[eqn.outvars[0]] = tuple(sorted(places))
    copied: dict[int, list[Var]] = defaultdict(list)
    for v in made:
        readers = sorted(k for k in set(level.readers(v)) if k < 0 or jaxpr.eqns[k].outvars[0] not in made)
        if 2 <= len(readers) <= MOST_READERS and readers[0] >= 0:
            for place in readers[1:]:
                copied[place].append(v)
    edits = [_edit(level, place, {v: made[v] for v in values}) for place, values in copied.items()]
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _edit(level: Level, place: int, values: dict[Var, tuple[int, ...]]) -> Edit:
    """A reader behind copies of what makes these values."""
    own: dict[Var, Var] = {}
    eqns: list[JaxprEqn] = []
    for k in sorted(set().union(*values.values())):
        eqn = level.eqns[k]
        own[eqn.outvars[0]] = _jax.new_var(eqn.outvars[0].aval)
        eqns.append(_reading(eqn, own).replace(outvars=[own[eqn.outvars[0]]]))
    here = frozenset({place})
    return Edit(place, here, [*eqns, _reading(level.eqns[place], own)], {}, here)


def _reading(eqn: JaxprEqn, own: dict[Var, Var]) -> JaxprEqn:
    return eqn.replace(invars=[own.get(x, x) if is_var(x) else x for x in eqn.invars])
