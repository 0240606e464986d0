"""Which results of an equation are linear in some of its operands, taken together: of loops too."""

import jax.numpy as jnp
import numpy as np

from aerogel._jax import Atom, JaxprEqn, Var, scan_counts

from .axes import linear_in, linear_together
from .level import Level
from .program import is_var


def linear_outs(level: Level, eqn: JaxprEqn, known: set[int]) -> set[int]:
    """The results of an equation that are real floats and linear in the operands at `known`, taken together.

    None of an equation that is more than linear in them anywhere.
    """
    if eqn.effects:
        return set()
    if eqn.primitive.name == "scan":
        return _of_scan(level, eqn, known)
    if not all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars):
        return set()
    together = linear_together(eqn)
    alone = len(known) == 1 and known <= set(linear_in(eqn))
    if alone or (known <= set(together) and all(k in known or is_zero(level, eqn.invars[k]) for k in together)):
        return set(range(len(eqn.outvars)))
    return set()


def _of_scan(level: Level, eqn: JaxprEqn, known: set[int]) -> set[int]:
    """Carries and outputs that each step makes linearly of linear carries and inputs, where the others read none."""
    body, (first, carries) = eqn.params["jaxpr"].jaxpr, scan_counts(eqn.params)
    inside, linear = Level(body), set(known)
    while True:
        values = _linear_values(inside, {body.invars[k] for k in linear})
        if values is None:
            return set()
        outs = {i for i, v in enumerate(body.outvars) if is_var(v) and v in values}
        new = linear | {first + i for i in outs if i < carries}
        if new == linear:
            break
        linear = new
    for i in range(carries):
        if first + i in linear:
            starts = first + i in known or is_zero(level, eqn.invars[first + i])
            if not starts or not (i in outs or is_zero(inside, body.outvars[i])):
                return set()
            outs.add(i)
    return outs


def _linear_values(level: Level, known: set[Var]) -> set[Var] | None:
    """What is linear in `known`; None if an equation is more than that."""
    values = set(known)
    for eqn in level.eqns:
        read = {k for k, x in enumerate(eqn.invars) if is_var(x) and x in values}
        if read:
            outs = linear_outs(level, eqn, read)
            if not outs:
                return None
            values |= {eqn.outvars[i] for i in outs}
    return values


def is_zero(level: Level, x: Atom) -> bool:
    """Whether a value is zeros, however often repeated."""
    while is_var(x):
        eqn = level.maker(x)
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "reshape", "stop_gradient"):
            return False
        x = eqn.invars[0]
    return not np.any(x.val)
