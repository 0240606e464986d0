"""Functions with a forward derivative rule of their own (`jax.custom_jvp`): `relu`, `silu`, `logsumexp`, ...

The axis is found in the function and in its rule; the block is a `custom_jvp` function again, of both blocks.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._jax import JaxprEqn, forward_rule
from ..record import record
from .answer import Axis, Mapped, No
from .entry import Entry
from .nested import jaxpr_along


def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int, after_differentiation: bool) -> Mapped | No:
    """The function along the axis, with its rule unless that has done its work."""
    function = jaxpr_along(eqn.params["call_jaxpr"], ins, length, after_differentiation=after_differentiation)
    if isinstance(function, No) or after_differentiation:
        return function
    return _with_rule(eqn, function, length)


def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    """The function backwards along the axis, with its rule."""
    function = jaxpr_along(eqn.params["call_jaxpr"], {}, length, outs=outs)
    return function if isinstance(function, No) else _with_rule(eqn, function, length)


# A rule may call its own function again (the derivative of `relu` does): inside a rule, rules are taken on trust until
# they are asked for, one order of differentiation at a time.
inside_rule: ContextVar[bool] = ContextVar("inside a derivative rule", default=False)


def _with_rule(eqn: JaxprEqn, function: Mapped, length: int) -> Mapped | No:
    if function.uses_start:
        return No("`custom_jvp_call` has a rule that needs more than its arguments")
    if not inside_rule.get():
        found = _rule(eqn, function, length)
        if isinstance(found, No):
            return found

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        call = jax.custom_jvp(lambda *xs: tuple(function.block(0, size, *xs)))

        @call.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            rule = _rule(eqn, function, length)
            assert not isinstance(rule, No), rule
            return _apply(rule, size, primals, tangents)

        return list(call(*inputs))

    return Mapped(function.ins, function.outs, block)


@record
class _Rule:
    """The derivative rule on blocks: it takes primals and the tangents at the positions `moving`."""

    mapped: Mapped
    moving: list[int]
    still: list[bool]


def _rule(eqn: JaxprEqn, function: Mapped, length: int) -> _Rule | No:
    found = forward_rule(eqn)
    if found is None:
        return No("`custom_jvp_call` has a rule that needs more than its arguments")
    program, moving, still = found
    places = [*function.ins, *(function.ins[k] for k in moving)]
    ins = {k: axis for k, axis in enumerate(places) if axis is not None}
    whole = [k for k, axis in enumerate(places) if axis is None]
    wanted = [*function.outs, *(axis for axis, zero in zip(function.outs, still, strict=True) if not zero)]
    outs = {k: axis for k, axis in enumerate(wanted) if axis is not None}
    token = inside_rule.set(True)
    try:
        rule = jaxpr_along(program, ins, length, outs=outs, whole=whole)
    finally:
        inside_rule.reset(token)
    if isinstance(rule, No) or list(rule.outs) != wanted or list(rule.ins) != places or rule.uses_start:
        return No("the derivative rule of `custom_jvp_call` is not known to work index by index")
    return _Rule(rule, moving, still)


def _apply(rule: _Rule, size: int, primals: Any, tangents: Any) -> Any:
    results = rule.mapped.block(0, size, *primals, *(tangents[k] for k in rule.moving))
    values, rest = results[: len(rule.still)], iter(results[len(rule.still) :])
    return tuple(values), tuple(
        _zero_tangent(v) if zero else next(rest) for v, zero in zip(values, rule.still, strict=True)
    )


def _zero_tangent(value: Any) -> Any:
    inexact = jnp.issubdtype(value.dtype, jnp.inexact)
    return jnp.zeros(value.shape, value.dtype) if inexact else np.zeros(value.shape, jax.dtypes.float0)


ENTRIES = {"custom_jvp_call": Entry(along, along_output, nested=True)}
