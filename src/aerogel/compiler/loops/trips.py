"""How often a `while` runs at most, where its condition counts its steps."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..program import is_var, producers

_TURNED = {"gt": "lt", "ge": "le"}


def most_trips(loop: JaxprEqn) -> int | None:
    """The steps after which the condition of a `while` fails at the latest; None where it does not say so.

    It does where it is `i < n`, and what else is asked, of a counter that each step adds a constant to.
    """
    p = loop.params
    cond, body = p["cond_jaxpr"].jaxpr, p["body_jaxpr"].jaxpr
    first = p["cond_nconsts"] + p["body_nconsts"]
    found: list[int] = []
    for counter, limit in _limits(cond, cond.outvars[0]):
        k = cond.invars.index(counter) - p["cond_nconsts"] if counter in cond.invars else -1
        if k < 0:
            continue
        start, step = loop.invars[first + k], _added(body, body.invars[p["body_nconsts"] + k], body.outvars[k])
        if isinstance(start, Literal) and step is not None and step > 0:
            found.append(max(0, -(-(limit - int(start.val)) // step)))
    return min(found, default=None)


def _limits(cond: Jaxpr, wanted: Atom) -> Iterator[tuple[Var, int]]:
    """Integers that must be less than a number for `wanted` to hold."""
    makers = producers(cond)
    stack = [wanted]
    while stack:
        x = stack.pop()
        if not is_var(x) or x not in makers:
            continue
        eqn = cond.eqns[makers[x]]
        name = eqn.primitive.name
        if name in ("and", "convert_element_type") and all(y.aval.dtype == bool for y in eqn.invars):
            stack += eqn.invars
        elif name in ("lt", "le", "gt", "ge"):
            a, b = eqn.invars if name in ("lt", "le") else eqn.invars[::-1]
            if is_var(a) and isinstance(b, Literal) and _is_integer(b):
                yield a, int(b.val) + (_TURNED.get(name, name) == "le")


def _added(body: Jaxpr, before: Var, after: Atom) -> int | None:
    makers = producers(body)
    if not is_var(after) or after not in makers:
        return None
    eqn = body.eqns[makers[after]]
    if eqn.primitive.name != "add" or before not in eqn.invars:
        return None
    (other,) = [x for x in eqn.invars if x is not before] or [before]
    return int(other.val) if isinstance(other, Literal) and _is_integer(other) else None


def _is_integer(x: Any) -> bool:
    return x.aval.shape == () and np.issubdtype(x.aval.dtype, np.integer)
