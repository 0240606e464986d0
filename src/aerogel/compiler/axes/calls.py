"""Calls of one nested program that mean no more than it does: `jit`, `closed_call`, `remat2`."""

from collections.abc import Callable, Mapping
from typing import Any

from ..._jax import ClosedJaxpr, JaxprEqn, convert_constvars, is_unspecified
from .answer import Axis, Mapped, No
from .entry import Entry
from .nested import jaxpr_along
from .rebind import bind
from .retrace import start_operands, trace_block


def call(get: Callable[[JaxprEqn], ClosedJaxpr | No]) -> Entry:
    """The entry of a call that means no more than its nested program does."""

    def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int, after_differentiation: bool) -> Mapped | No:
        nested = get(eqn)
        if isinstance(nested, No):
            return nested
        return jaxpr_along(nested, ins, length, after_differentiation=after_differentiation)

    def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
        nested = get(eqn)
        return nested if isinstance(nested, No) else jaxpr_along(nested, {}, length, outs=outs)

    return Entry(along, along_output, nested=True)


def _jit(eqn: JaxprEqn) -> ClosedJaxpr | No:
    params = eqn.params
    asks = (
        any(params["donated_invars"])
        or params["compiler_options_kvs"]
        or any(layout is not None for layout in (*params["in_layouts"], *params["out_layouts"]))
        or not all(is_unspecified(sharding) for sharding in (*params["in_shardings"], *params["out_shardings"]))
    )
    return No("`jit` with shardings, layouts, donation or compiler options") if asks else params["jaxpr"]


def _remat_along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int, after_differentiation: bool) -> Mapped | No:
    nested = ClosedJaxpr(eqn.params["jaxpr"], ())
    return _checkpointed(eqn, jaxpr_along(nested, ins, length, after_differentiation=after_differentiation))


def _remat_along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    return _checkpointed(eqn, jaxpr_along(ClosedJaxpr(eqn.params["jaxpr"], ()), {}, length, outs=outs))


def _checkpointed(eqn: JaxprEqn, inner: Mapped | No) -> Mapped | No:
    """The same as a checkpointed block: what is recomputed stays recomputed."""
    if isinstance(inner, No):
        return inner

    avals = [v.aval for v in eqn.invars]

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        traced = trace_block(inner, avals, size, inner.uses_start)
        operands = [*traced.consts, *start_operands(start, inner.uses_start), *inputs]
        return bind(eqn, operands, eqn.params | {"jaxpr": convert_constvars(traced.jaxpr)})

    return Mapped(inner.ins, inner.outs, block, inner.uses_start)


ENTRIES: dict[str, Entry] = {
    "jit": call(_jit),
    "closed_call": call(lambda eqn: eqn.params["call_jaxpr"]),
    "eval_jaxpr": call(lambda eqn: eqn.params["call_jaxpr"]),  # the same since jax 0.11
    "remat2": Entry(_remat_along, _remat_along_output, nested=True),
}
