"""Operations that JAX keeps whole until it lowers a program, as what they compute.

In jax 0.12 `jnp.searchsorted`, `nonzero`, `ldexp` and others are one equation each, in which nothing can be found.
"""

import weakref
from collections.abc import Hashable
from typing import Any

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn

# Weakly: an operation may hold functions of the user's, and these arrays.
_known: weakref.WeakKeyDictionary[Any, dict[Hashable, Jaxpr | None]] = weakref.WeakKeyDictionary()


def lowered(eqn: JaxprEqn) -> Jaxpr | None:
    """What such an operation of JAX's own computes, of its operands; None of any other equation.

    The same object for equal ones, so that functions that they call stay one function.
    """
    operation = _jax.jax_operation(eqn)
    if operation is None:
        return None
    known = _known.setdefault(operation, {})
    types = [(x.aval, bool(getattr(x.aval, "weak_type", False))) for x in (*eqn.invars, *eqn.outvars)]
    key = (tuple(types), eqn.ctx, _jax.trace_key())
    if key not in known:
        program = _jax.lowered_operation(eqn)
        same = all(_jax.same_type(a.aval, b.aval) for a, b in zip(program.jaxpr.outvars, eqn.outvars, strict=True))
        known[key] = program.jaxpr if same and not program.consts else None
    return known[key]


def written_out(eqn: JaxprEqn) -> Jaxpr | None:
    """The same for those alone of which nothing is lost: they have no derivative, and no say in a checkpoint."""
    return None if _jax.jax_operation(eqn) is None or _jax.has_rules_to_keep(eqn) else lowered(eqn)
