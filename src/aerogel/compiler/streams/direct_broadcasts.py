"""Large values that are repeated are repeated from what is small: blocks of one need not read all of the other.

`jnp.where(mask, scores, -jnp.inf)` under `vmap` fills a table with the constant and repeats that for each example. The
table would be the same in each block of examples, and so exist.
"""

from aerogel._jax import Jaxpr, JaxprEqn

from ..cost import nbytes
from ..level import Edit, Level, apply_edits
from ..normalize import drop_dead
from ..program import is_var


def with_direct_broadcasts(jaxpr: Jaxpr, least_bytes: int) -> Jaxpr:
    """A level in which no broadcast reads one of at least so many bytes; the same object if none does.

    Each reads what that broadcast repeats. The numbers are the same.
    """
    made_by = Level(jaxpr).made_by
    direct: dict[int, JaxprEqn] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        x = eqn.invars[0] if _is_broadcast(eqn) else None
        maker = made_by.get(x) if x is not None and is_var(x) else None
        if maker is None or not _is_broadcast(jaxpr.eqns[maker]):
            continue
        inner = direct.get(maker, jaxpr.eqns[maker])
        repeated = inner.outvars[0].aval
        if nbytes(repeated) < least_bytes or inner.invars[0].aval.size >= repeated.size:
            continue
        dims = eqn.params["broadcast_dimensions"]
        through = tuple(int(dims[d]) for d in inner.params["broadcast_dimensions"])
        direct[place] = eqn.replace(invars=inner.invars, params=eqn.params | {"broadcast_dimensions": through})
    if not direct:
        return jaxpr
    edits = [Edit(place, frozenset((place,)), [eqn], {}, frozenset((place,))) for place, eqn in direct.items()]
    return drop_dead(apply_edits(jaxpr, edits)[0])


def _is_broadcast(eqn: JaxprEqn) -> bool:
    """Whether an equation repeats one value and says nothing of how it is sharded."""
    return eqn.primitive.name == "broadcast_in_dim" and len(eqn.invars) == 1 and eqn.params.get("sharding") is None
