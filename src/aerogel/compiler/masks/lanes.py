"""A `while` whose lanes stop one by one, as `vmap` makes it, with that written out.

Its condition gives a boolean for each lane. JAX lowers it to a loop that goes on while any is true, and selects at the
end of each step, for each carry as a whole, between what the step made and what was there. No pass sees that.
"""

from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn

from ..program import Builder


def written_out(eqn: JaxprEqn) -> JaxprEqn | None:
    """The same loop with a scalar condition and the selections in its body; None for other equations."""
    if eqn.primitive.name != "while" or eqn.effects:
        return None
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    if not cond.out_avals[0].shape or cond.consts or body.consts:
        return None
    mine, others = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    new = Builder(eqn)
    consts = [_jax.new_var(v.aval) for v in (*cond.jaxpr.invars[:mine], *body.jaxpr.invars[:others])]
    carry = [_jax.new_var(v.aval) for v in body.jaxpr.invars[others:]]
    (goes_on,) = new.inline(cond.jaxpr, [*consts[:mine], *carry])
    after = new.inline(body.jaxpr, [*consts[mine:], *carry])
    outs: list[Atom] = []
    for old, then in zip(carry, after, strict=True):
        (out,) = new.call(_select, goes_on, then, old)
        outs.append(new.as_weak_as(old, out))
    params = dict(
        eqn.params,
        cond_jaxpr=ClosedJaxpr(_any(cond.jaxpr, eqn), ()),
        body_jaxpr=ClosedJaxpr(_jax.new_jaxpr(body.jaxpr, [*consts, *carry], outs, new.eqns), ()),
        body_nconsts=mine + others,
    )
    return eqn.replace(invars=[*eqn.invars[:mine], *eqn.invars], params=params)


def _select(lanes: Any, then: Any, old: Any) -> Any:
    return lax.select(lax.broadcast_in_dim(lanes, then.shape, range(lanes.ndim)), then, old)


def _any(cond: Jaxpr, like: JaxprEqn) -> Jaxpr:
    """The condition, true where it is for any lane."""
    builder = Builder(like)
    invars = [_jax.new_var(v.aval) for v in cond.invars]
    (lanes,) = builder.inline(cond, invars)
    outs = builder.call(lambda x: lax.reduce_or(x, range(x.ndim)), lanes)
    return _jax.new_jaxpr(cond, invars, outs, builder.eqns)
