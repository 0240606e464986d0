"""Sorts without what they carry along and nobody reads: the derivative of a sort asks for the places of all entries."""

from ..._jax import Jaxpr, JaxprEqn, Var
from ..program import is_var, with_equations


def without_unread_payloads(jaxpr: Jaxpr) -> Jaxpr:
    """A level whose stable sorts carry along only what is read; the same object if they do already."""
    if not any(map(_carries, jaxpr.eqns)):
        return jaxpr
    read = {x for eqn in jaxpr.eqns for x in eqn.invars if is_var(x)} | {x for x in jaxpr.outvars if is_var(x)}
    eqns = [_narrowed(eqn, read) if _carries(eqn) else eqn for eqn in jaxpr.eqns]
    if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return with_equations(jaxpr, eqns, jaxpr.outvars)


def _carries(eqn: JaxprEqn) -> bool:
    """Whether a sort has more operands than keys, and equal keys keep their order, whatever else is sorted."""
    return eqn.primitive.name == "sort" and eqn.params["is_stable"] and len(eqn.invars) > eqn.params["num_keys"]


def _narrowed(eqn: JaxprEqn, read: set[Var]) -> JaxprEqn:
    keys = eqn.params["num_keys"]
    kept = [k for k, v in enumerate(eqn.outvars) if k < keys or v in read]
    if len(kept) == len(eqn.outvars):
        return eqn
    return eqn.replace(invars=[eqn.invars[k] for k in kept], outvars=[eqn.outvars[k] for k in kept])
