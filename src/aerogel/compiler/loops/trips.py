"""How often a `while` runs, where its condition counts its steps."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..program import is_var, producers

_TURNED = {"gt": "lt", "ge": "le"}
_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}


def most_trips(loop: JaxprEqn) -> int | None:
    """The steps after which the condition of a `while` fails at the latest; None where it does not say so.

    It does where it is `i < n`, and what else is asked, of a counter that each step adds a constant to.
    """
    cond = loop.params["cond_jaxpr"].jaxpr
    found = (_trips(loop, counter, limit) for counter, limit in _limits(cond, cond.outvars[0]))
    return min((n for n in found if n is not None), default=None)


def exact_trips(loop: JaxprEqn) -> int | None:
    """The steps of a `while` whose condition asks for nothing but `i < n`; None where they are not known.

    `n` is a number, or a carry that no step changes and that begins as one; `i` counts up or down.
    """
    cond = loop.params["cond_jaxpr"].jaxpr
    made = producers(cond)
    (goes_on,) = cond.outvars
    if not is_var(goes_on) or goes_on not in made or goes_on.aval.shape:
        return None
    eqn = cond.eqns[made[goes_on]]
    if eqn.primitive.name not in ("lt", "le", "gt", "ge"):
        return None
    name, (counter, bound) = eqn.primitive.name, eqn.invars
    if not is_var(counter) or _number(loop, counter) is not None:
        name, counter, bound = _MIRRORED[name], bound, counter
    limit = _number(loop, bound)
    if limit is None or not is_var(counter):
        return None
    if name in ("lt", "le"):
        return _trips(loop, counter, limit + (name == "le"))
    return _trips(loop, counter, limit - (name == "ge"), down=True)


def _number(loop: JaxprEqn, x: Atom) -> int | None:
    """The integer that an atom of the condition is in all steps."""
    p = loop.params
    cond, body = p["cond_jaxpr"].jaxpr, p["body_jaxpr"].jaxpr
    if is_var(x) and x in cond.invars:
        place = cond.invars.index(x)
        k = place - p["cond_nconsts"]
        if k >= 0 and body.outvars[k] is not body.invars[p["body_nconsts"] + k]:
            return None
        x = loop.invars[place if k < 0 else p["cond_nconsts"] + p["body_nconsts"] + k]
    return int(x.val) if isinstance(x, Literal) and _is_integer(x) else None


def _trips(loop: JaxprEqn, counter: Var, limit: int, *, down: bool = False) -> int | None:
    """The steps after which a counter has come to a limit; None if it is no counter, or would run over before."""
    p = loop.params
    cond, body = p["cond_jaxpr"].jaxpr, p["body_jaxpr"].jaxpr
    k = cond.invars.index(counter) - p["cond_nconsts"] if counter in cond.invars else -1
    if k < 0:
        return None
    start = loop.invars[p["cond_nconsts"] + p["body_nconsts"] + k]
    step = _added(body, body.invars[p["body_nconsts"] + k], body.outvars[k])
    if not isinstance(start, Literal) or step is None or (step >= 0 if down else step <= 0):
        return None
    steps = max(0, -((int(start.val) - limit) // step))
    bounds = np.iinfo(counter.aval.dtype)
    return steps if bounds.min <= int(start.val) + steps * step <= bounds.max else None


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
    name = eqn.primitive.name
    if name not in ("add", "sub") or before not in eqn.invars or (name == "sub" and eqn.invars[0] is not before):
        return None
    (other,) = [x for x in eqn.invars if x is not before] or [before]
    if not isinstance(other, Literal) or not _is_integer(other):
        return None
    return -int(other.val) if name == "sub" else int(other.val)


def _is_integer(x: Any) -> bool:
    return x.aval.shape == () and np.issubdtype(x.aval.dtype, np.integer)
