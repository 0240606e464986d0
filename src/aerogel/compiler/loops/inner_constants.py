"""Constants that a loop's steps make for themselves: masks of counters, say, which JAX makes before a gradient's loops.

In a step they are known for what they are. XLA makes them before the loop, or with what reads them.
"""

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..hoisting.open_steps import CHECKPOINTS
from ..level import Level
from ..loop import as_loop
from ..program import copy_equation, is_var, rename, substitute

MOST = 24  # equations of a mask
CHEAP = frozenset((*ELEMENTWISE, "iota", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose"))


def with_constants_inside(level: Level, eqn: JaxprEqn) -> JaxprEqn:
    """A loop, or a checkpoint, that makes itself what needs numbers only; the same object if it is handed nothing such.

    These are no arguments of it any more.
    """
    loop = as_loop(eqn)
    if loop is None and eqn.primitive.name not in CHECKPOINTS:
        return eqn
    handed = len(eqn.invars) if loop is None else len(loop.consts)
    made = {k: made_of_numbers(level, x) for k, x in enumerate(eqn.invars[:handed]) if is_var(x)}
    gone = [k for k, places in made.items() if places]
    if not gone:
        return eqn
    env: dict[Var, Atom] = {}
    copies = [copy_equation(level.eqns[k], env) for k in sorted({one for k in gone for one in made[k]})]
    value = eqn.params["jaxpr"]
    body = value.jaxpr if isinstance(value, ClosedJaxpr) else value
    inside = {body.invars[k]: substitute(eqn.invars[k], env) for k in gone}
    kept = [k for k in range(len(eqn.invars)) if k not in gone]
    eqns = [*copies, *(rename(one, inside) for one in body.eqns)]
    outs = [substitute(x, inside) for x in body.outvars]
    new = _jax.new_jaxpr(body, [body.invars[k] for k in kept], outs, eqns, body.constvars)
    if loop is not None:
        params = _jax.scan_params(eqn.params, ClosedJaxpr(new, ()), len(loop.consts) - len(gone), len(loop.init))
    else:
        params = eqn.params | {"jaxpr": ClosedJaxpr(new, value.consts) if isinstance(value, ClosedJaxpr) else new}
    return eqn.replace(invars=[eqn.invars[k] for k in kept], params=params)


def made_of_numbers(level: Level, x: Var) -> frozenset[int]:
    """The places of the few equations that make a value of nothing but numbers; none if there are others."""
    places, waiting = set[int](), [x]
    while waiting:
        place = level.made_by.get(waiting.pop())
        if place is None or level.eqns[place].primitive.name not in CHEAP or len(places) > MOST:
            return frozenset()
        if place not in places:
            places.add(place)
            waiting += [y for y in level.eqns[place].invars if is_var(y)]
    return frozenset(places)
