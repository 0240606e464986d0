"""Operations that JAX keeps whole until it lowers a program: `jnp.searchsorted`, say, since jax 0.11."""

from typing import Any

import jax
from jax._src import core
from jax.extend.core import ClosedJaxpr, JaxprEqn

from .source import bound_like
from .trace import trace_flat


def jax_operation(eqn: JaxprEqn) -> Any:
    """What says how such an operation of JAX's own is lowered, a hashable value; None of any other equation.

    One that a user made may have a rule for `vmap` that is better than what its lowered form gets.
    """
    operation = eqn.params.get("_prim") if eqn.primitive.name == "call_hi_primitive" else None
    return operation if type(operation).__module__.startswith("jax.") and not eqn.effects else None


def has_rules_to_keep(eqn: JaxprEqn) -> bool:
    """Whether such an operation has a derivative, or a say in what a checkpoint keeps: its lowered form has neither."""
    kind = type(eqn.params["_prim"])
    base = kind.__mro__[-2]  # that of all such operations; jax 0.10.2 has another name for it
    moves = any(v.aval.to_tangent_aval().dtype != jax.dtypes.float0 for v in eqn.outvars)
    return moves or kind.remat is not base.remat


def lowered_operation(eqn: JaxprEqn) -> ClosedJaxpr:
    """What such an operation computes, as the program of its operands that JAX lowers it to."""

    def lowered(*operands: Any) -> Any:
        with bound_like(eqn):
            return eqn.primitive.to_lojax(*operands, **eqn.params)

    names = tuple(f"x{i}" for i in range(len(eqn.invars)))
    info = core.DebugInfo("lowered_operation", type(eqn.params["_prim"]).__name__, names, None)
    return trace_flat(lowered, info, [x.aval for x in eqn.invars])
