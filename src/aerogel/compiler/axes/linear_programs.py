"""Linearity of what holds programs: branches, loops and calls that are linear in some of their operands."""

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

from ... import _jax
from ..._jax import Atom, DropVar, Jaxpr, JaxprEqn, Literal, Var
from ..zeros import is_zero, is_zero_made
from .linear import linear_in, linear_together

DEEPEST = 8


def is_linear(eqn: JaxprEqn, moving: Collection[int], zeros: Collection[int] = (), depth: int = 0) -> bool:
    """Whether all results of an equation are linear in the inputs at `moving`, taken at once, the others being fixed.

    Args:
        eqn: any equation.
        moving: positions of inputs.
        zeros: positions of inputs that are zero.
        depth: how many programs it stands in.
    """
    if eqn.effects or depth > DEEPEST:
        return False
    if len(moving) == 1 and set(moving) <= set(linear_in(eqn)):
        return True
    together = linear_together(eqn)
    if moving and set(moving) <= set(together):
        return all(k in moving or k in zeros for k in together)
    nested = _NESTED.get(eqn.primitive.name)
    return nested is not None and nested(eqn, set(moving), set(zeros), depth + 1)


class Kind(Enum):
    """What a result is in some inputs, the others being fixed."""

    LINEAR = "linear"
    ZERO = "zero"
    FIXED = "fixed"


def _kinds(jaxpr: Jaxpr, moving: set[int], zeros: set[int], depth: int) -> list[Kind] | None:
    """What the results of a program are in the inputs at `moving`; None where something is not linear in them."""
    linear = {jaxpr.invars[k] for k in moving}
    none = {jaxpr.invars[k] for k in zeros}
    for eqn in jaxpr.eqns:
        own = [k for k, x in enumerate(eqn.invars) if _is_in(x, linear)]
        if own:
            empty = [k for k, x in enumerate(eqn.invars) if is_zero(x, none)]
            if not is_linear(eqn, own, empty, depth):
                return None
            linear.update(eqn.outvars)
        elif is_zero_made(eqn, none):
            none.update(eqn.outvars)
    found = (_is_in(x, linear) for x in jaxpr.outvars)
    return [
        Kind.LINEAR if one else Kind.ZERO if is_zero(x, none) else Kind.FIXED
        for one, x in zip(found, jaxpr.outvars, strict=True)
    ]


def _is_in(x: Atom, some: set[Var]) -> bool:
    return not isinstance(x, Literal) and x in some


def _fit(eqn: JaxprEqn, kinds: Sequence[Kind] | None) -> bool:
    """Whether no result that is read is fixed."""
    return kinds is not None and all(
        one is not Kind.FIXED or isinstance(v, DropVar) for one, v in zip(kinds, eqn.outvars, strict=True)
    )


def _cond(eqn: JaxprEqn, moving: set[int], zeros: set[int], depth: int) -> bool:
    if 0 in moving:
        return False
    inner, empty = {k - 1 for k in moving}, {k - 1 for k in zeros if k}
    branches = eqn.params["branches"]
    return all(not one.consts and _fit(eqn, _kinds(one.jaxpr, inner, empty, depth)) for one in branches)


def _jit(eqn: JaxprEqn, moving: set[int], zeros: set[int], depth: int) -> bool:
    closed: Any = eqn.params["jaxpr"]
    return not closed.consts and _fit(eqn, _kinds(closed.jaxpr, moving, zeros, depth))


def _scan(eqn: JaxprEqn, moving: set[int], zeros: set[int], depth: int) -> bool:
    """A loop, where each carry that is linear after a step begins with something linear, or with zeros."""
    closed, (first, count) = eqn.params["jaxpr"], _jax.scan_counts(eqn.params)
    carries, linear = range(first, first + count), set(moving)
    if closed.consts:
        return False
    for _ in range(2 * count + 1):
        kinds = _kinds(closed.jaxpr, linear, zeros - linear, depth)
        if kinds is None:
            return False
        after = dict(zip(carries, kinds[:count], strict=True))
        more = {k for k, kind in after.items() if kind is Kind.LINEAR} - linear
        gone = {k for k, kind in after.items() if kind is Kind.FIXED} & (zeros - linear)
        if not more and not gone:
            return all(after[k] is not Kind.FIXED for k in carries if k in linear) and _fit(eqn, kinds)
        if not more <= zeros:
            return False
        linear, zeros = linear | more, zeros - gone
    return False


_NESTED = {"cond": _cond, "jit": _jit, "scan": _scan}
