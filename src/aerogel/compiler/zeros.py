"""What is left of a body when some of its inputs are zero.

`0 * x` is taken as 0: the exactness of whoever uses this is `finite`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from .program import Builder, is_var, rename, substitute

# Zero when their first input is.
LINEAR = frozenset(
    "neg convert_element_type broadcast_in_dim reshape squeeze expand_dims transpose reduce_sum slice rev copy "
    "cumsum real imag conj dynamic_slice gather select_and_gather_add reduce_precision".split()
)


def zero_outputs(body: Jaxpr, zeros: Iterable[Var]) -> set[Var]:
    """All variables of a body that are zero when those in `zeros` are."""
    known = set(zeros)
    for eqn in body.eqns:
        if is_zero_made(eqn, known):
            known.update(eqn.outvars)
    return known


def is_zero(atom: Atom, known: set[Var]) -> bool:
    """Whether an atom is a literal zero or known to be one."""
    return not np.any(atom.val) if isinstance(atom, Literal) else atom in known


def is_zero_made(eqn: JaxprEqn, known: set[Var]) -> bool:
    """Whether all that an equation makes is zero when what is in `known` is."""
    name = eqn.primitive.name
    if eqn.effects or not eqn.invars:
        return False
    if name in ("mul", "dot_general"):
        return any(is_zero(x, known) for x in eqn.invars)
    if name in ("add", "sub", "add_any", "max", "min", "concatenate", "pad"):
        return all(is_zero(x, known) for x in eqn.invars)
    if name == "select_n":
        return all(is_zero(x, known) for x in eqn.invars[1:])
    if name == "div":
        return is_zero(eqn.invars[0], known)
    return name in LINEAR and is_zero(eqn.invars[0], known)


def without_zeros(body: Jaxpr, zeros: Iterable[Var], builder: Builder) -> dict[Var, Atom]:
    """Appends to `builder` what is left of a body whose inputs in `zeros` are zero; atoms for all its variables.

    The body's other inputs stand for themselves.
    """
    known = zero_outputs(body, zeros)
    env: dict[Var, Atom] = {}
    made: dict[Any, Atom] = {}

    def zero_like(var: Var) -> Atom:
        key = (var.aval.shape, var.aval.dtype)
        if key not in made:
            (made[key],) = builder.call(lambda: lax.full(var.aval.shape, 0, var.aval.dtype))
        return made[key]

    for eqn in body.eqns:
        if all(v in known for v in eqn.outvars) and eqn.outvars:
            continue
        same = _other_summand(eqn, known)
        if same is not None:
            env[eqn.outvars[0]] = substitute(same, env)
            continue
        for x in eqn.invars:
            if is_var(x) and x in known and x not in env:
                env[x] = zero_like(x)
        builder.eqns.append(rename(eqn, env))
    for x in body.outvars:
        if is_var(x) and x in known and x not in env:
            env[x] = zero_like(x)
    return env


def _other_summand(eqn: JaxprEqn, known: set[Var]) -> Atom | None:
    """The one summand of a sum that is not zero, when it has the type of the sum."""
    if eqn.primitive.name not in ("add", "add_any", "sub"):
        return None
    a, b = eqn.invars
    if is_zero(b, known) and a.aval == eqn.outvars[0].aval:
        return a
    if eqn.primitive.name != "sub" and is_zero(a, known) and b.aval == eqn.outvars[0].aval:
        return b
    return None
