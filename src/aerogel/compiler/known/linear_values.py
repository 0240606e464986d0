"""Which results of an equation are linear in some of its operands, taken together: of loops too."""

from collections.abc import Container

import jax.numpy as jnp
import numpy as np

from aerogel._jax import Atom, JaxprEqn, Var, scan_counts

from ..axes import linear_in, linear_together
from ..level import Level
from ..program import is_var
from ..zeros import zero_outputs


def linear_outs(level: Level, eqn: JaxprEqn, known: set[int], zeros: Container[Var] = ()) -> set[int]:
    """The results of an equation that are real floats and linear in the operands at `known`, taken together.

    None of an equation that is more than linear in them anywhere. Those in `zeros` are zero.
    """
    if eqn.effects:
        return set()
    if eqn.primitive.name == "scan":
        return _of_scan(level, eqn, known, zeros)
    if not all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars):
        return set()
    together = linear_together(eqn)
    alone = len(known) == 1 and known <= set(linear_in(eqn))
    others = (eqn.invars[k] for k in together if k not in known)
    if alone or (known <= set(together) and all(is_zero(level, x, zeros) for x in others)):
        return set(range(len(eqn.outvars)))
    return set()


def _of_scan(level: Level, eqn: JaxprEqn, known: set[int], zeros: Container[Var]) -> set[int]:
    """Carries and outputs that each step makes linearly of linear carries and inputs, where the others read none."""
    body, (first, carries) = eqn.params["jaxpr"].jaxpr, scan_counts(eqn.params)
    inside, linear = Level(body), set(known)
    zero = {k for k, x in enumerate(eqn.invars) if is_zero(level, x, zeros)}
    from_zero = zero & {*range(first, first + carries)}
    # A carry that starts as zero may turn out to be linear: until then it is taken as zero.
    tried = from_zero - linear
    while True:
        known_zeros = zero_outputs(body, (body.invars[k] for k in (zero - from_zero) | tried))
        values = _linear_values(inside, {body.invars[k] for k in linear}, known_zeros)
        if values is None:
            return set()
        outs = {i for i, v in enumerate(body.outvars) if is_var(v) and v in values}
        new = linear | {first + i for i in outs if i < carries}
        if new == linear and not tried:
            break
        tried = from_zero - new if new != linear else set()
        linear = new
    for i in range(carries):
        if first + i in linear:
            starts = first + i in known or first + i in from_zero
            if not starts or not (i in outs or is_zero(inside, body.outvars[i])):
                return set()
            outs.add(i)
    return outs


def _linear_values(level: Level, known: set[Var], zeros: set[Var]) -> set[Var] | None:
    """What is linear in `known`; None if an equation is more than that."""
    values = set(known)
    for eqn in level.eqns:
        read = {k for k, x in enumerate(eqn.invars) if is_var(x) and x in values}
        if read:
            outs = linear_outs(level, eqn, read, zeros)
            if not outs:
                return None
            values |= {eqn.outvars[i] for i in outs}
    return values


def is_zero(level: Level, x: Atom, zeros: Container[Var] = ()) -> bool:
    """Whether a value is zeros, however often repeated."""
    while is_var(x):
        if x in zeros:
            return True
        eqn = level.maker(x)
        if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "reshape", "stop_gradient"):
            return False
        x = eqn.invars[0]
    return not np.any(x.val)
