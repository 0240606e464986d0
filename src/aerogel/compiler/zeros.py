"""What is left of a body when some of its inputs are zero.

`0 * x` is taken as 0: the exactness of whoever uses this is `finite`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, scan_counts

from .applied import applies_function
from .program import Builder, is_var, rename, substitute

# Zero when their first input is.
LINEAR = frozenset(
    "neg convert_element_type broadcast_in_dim reshape squeeze expand_dims transpose reduce_sum slice rev copy "
    "cumsum real imag conj dynamic_slice gather select_and_gather_add reduce_precision fft".split()
)
# Zero when one of their inputs is.
PRODUCTS = frozenset("mul dot_general conv_general_dilated".split())
# Zero when all of their inputs are, or the inputs at these places.
SUMS = frozenset("add sub add_any max min concatenate pad".split())
PLACES = {"triangular_solve": (1,), "dynamic_update_slice": (0, 1), "scatter-add": (0, 2), "scatter": (0, 2)}


def zero_outputs(body: Jaxpr, zeros: Iterable[Var]) -> set[Var]:
    """All variables of a body that are zero when those in `zeros` are."""
    known = set(zeros)
    for eqn in body.eqns:
        known.update(zeros_made(eqn, known))
    return known


def is_zero(atom: Atom, known: set[Var]) -> bool:
    """Whether an atom is a literal zero or known to be one."""
    return not np.any(atom.val) if isinstance(atom, Literal) else atom in known


def zeros_made(eqn: JaxprEqn, known: set[Var]) -> list[Var]:
    """What an equation makes that is zero when what is in `known` is: of a loop, maybe a part."""
    if eqn.effects:
        return []
    if eqn.primitive.name == "scan":
        return _made_by_scan(eqn, known)
    if eqn.primitive.name == "custom_linear_solve":  # linear in its right-hand sides, all of them together
        sides = eqn.invars[-len(eqn.outvars) :]
        return list(eqn.outvars) if all(is_zero(x, known) for x in sides) else []
    return list(eqn.outvars) if is_zero_made(eqn, known) else []


def _made_by_scan(eqn: JaxprEqn, known: set[Var]) -> list[Var]:
    """The carries that start as zero and stay so, and the outputs that are zero in every step."""
    body, (first, carries) = eqn.params["jaxpr"].jaxpr, scan_counts(eqn.params)
    zero = {k for k, x in enumerate(eqn.invars) if is_zero(x, known)}
    while zero:
        inside = zero_outputs(body, (body.invars[k] for k in zero))
        outs = [is_zero(x, inside) for x in body.outvars]
        lost = {first + i for i in range(carries) if first + i in zero and not outs[i]}
        if not lost:  # a carry that starts otherwise is no zero, whatever the last step makes of it
            return [v for i, v in enumerate(eqn.outvars) if outs[i] and (i >= carries or first + i in zero)]
        zero -= lost
    return []


def is_zero_made(eqn: JaxprEqn, known: set[Var]) -> bool:
    """Whether all that an equation makes is zero when what is in `known` is; of a loop, `zeros_made` tells."""
    name = eqn.primitive.name
    if eqn.effects or not eqn.invars:
        return False
    if name in PRODUCTS:
        return any(is_zero(x, known) for x in eqn.invars)
    if name in SUMS:
        return all(is_zero(x, known) for x in eqn.invars)
    if name in PLACES:
        return not applies_function(eqn) and all(is_zero(eqn.invars[k], known) for k in PLACES[name])
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
