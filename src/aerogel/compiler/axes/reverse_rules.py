"""Functions with a backward derivative rule of their own (`jax.custom_vjp`).

The axis is found in the function, in its forward pass with residuals and in its backward pass; the block is a
`custom_vjp` function again, of the three blocks.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax

from ..._jax import BackwardRule, JaxprEqn, backward_rule
from ..record import record
from .answer import Axis, Mapped, No
from .custom import inside_rule
from .entry import Entry
from .nested import jaxpr_along


def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int, after_differentiation: bool) -> Mapped | No:
    """The function along the axis, with its rules unless they have done their work."""
    function = jaxpr_along(eqn.params["call_jaxpr"], ins, length, after_differentiation=after_differentiation)
    if isinstance(function, No) or after_differentiation:
        return function
    return _with_rules(eqn, function, length)


def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    """The function backwards along the axis, with its rules."""
    function = jaxpr_along(eqn.params["call_jaxpr"], {}, length, outs=outs)
    return function if isinstance(function, No) else _with_rules(eqn, function, length)


@record
class _Rules:
    """Both rules on blocks."""

    rule: BackwardRule
    forward: Mapped
    backward: Mapped

    def run_forward(self, size: int, primals: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The results, and what the backward pass needs."""
        found = self.forward.block(0, size, *primals)
        made = iter(found[: self.rule.made])
        kept = tuple(next(made) if k is None else primals[k] for k in self.rule.forwarded)
        return tuple(found[self.rule.made :]), kept

    def run_backward(self, size: int, kept: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The cotangents of the inputs; None for those that are zero."""
        found = iter(self.backward.block(0, size, *kept, *cotangents))
        return tuple(None if zero else next(found) for zero in self.rule.zero)


def _with_rules(eqn: JaxprEqn, function: Mapped, length: int) -> Mapped | No:
    if not inside_rule.get():
        found = _rules(eqn, function, length)
        if isinstance(found, No):
            return found

    @cache
    def rules() -> _Rules:
        rules = _rules(eqn, function, length)
        assert not isinstance(rules, No), rules
        return rules

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        call = jax.custom_vjp(lambda *xs: tuple(function.block(0, size, *xs)))
        call.defvjp(lambda *xs: rules().run_forward(size, xs), lambda kept, cts: rules().run_backward(size, kept, cts))
        return list(call(*inputs))

    return Mapped(function.ins, function.outs, block)


def _rules(eqn: JaxprEqn, function: Mapped, length: int) -> _Rules | No:
    """Both rules along the axis.

    The cotangent of an input without the axis is a sum over it, which blocks do not give: it must be zero.
    """
    rule = backward_rule(eqn)
    if rule is None or function.uses_start:
        return No("`custom_vjp_call` has rules that need more than its arguments")
    refusal = No("the derivative rules of `custom_vjp_call` are not known to work index by index")
    if any(axis is None and not zero for axis, zero in zip(function.ins, rule.zero, strict=True)):
        return refusal
    outs = {rule.made + k: axis for k, axis in enumerate(function.outs) if axis is not None}
    forward = _exactly(rule.forward, function.ins, outs, length)
    if len(outs) < len(function.outs) or forward is None or forward.outs[rule.made :] != function.outs:
        return refusal
    made = iter(forward.outs[: rule.made])
    kept = [next(made) if k is None else function.ins[k] for k in rule.forwarded]
    wanted = [axis for axis, zero in zip(function.ins, rule.zero, strict=True) if not zero]
    backward = _exactly(rule.backward, (*kept, *function.outs), dict(enumerate(wanted)), length)
    if backward is None or list(backward.outs) != wanted:
        return refusal
    return _Rules(rule, forward, backward)


def _exactly(program: Any, places: Any, outs: Mapping[int, Any], length: int) -> Mapped | None:
    """The program along the axis, with inputs in the given places and no others."""
    ins = {k: axis for k, axis in enumerate(places) if axis is not None}
    whole = [k for k, axis in enumerate(places) if axis is None]
    token = inside_rule.set(True)
    try:
        found = jaxpr_along(program, ins, length, outs=outs, whole=whole)
    finally:
        inside_rule.reset(token)
    return None if isinstance(found, No) or found.uses_start or tuple(found.ins) != tuple(places) else found


ENTRIES = {"custom_vjp_call": Entry(along, along_output, nested=True)}
