"""Whether two bodies compute the same: equation by equation, whatever their variables and source lines are called."""

from typing import Any

import numpy as np

from aerogel._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var

from .program import is_var, remembered

# Equal equations that must stay two: one is a new draw each time though it has no effect, the other a barrier.
KEPT_APART = frozenset({"rng_uniform", "optimization_barrier"})


class Body:
    """A jaxpr as a key: equal to another that computes the same, compared only where a dictionary asks.

    A function that is traced twice (a loop's body, say, that is written once and called twice) gives two such jaxprs.
    """

    __slots__ = ("consts", "jaxpr")

    def __init__(self, jaxpr: ClosedJaxpr | Jaxpr):
        self.jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
        self.consts = tuple(map(id, jaxpr.consts)) if isinstance(jaxpr, ClosedJaxpr) else ()

    def __hash__(self) -> int:
        return hash((self.consts, _said(self.jaxpr)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Body) or self.consts != other.consts:
            return False
        return self.jaxpr is other.jaxpr or _same(self.jaxpr, other.jaxpr)


@remembered
def _said(jaxpr: Jaxpr) -> int:
    """A hash of the operations and literals: the bodies of a loop that Python unrolled differ in literals alone."""
    said = [(eqn.primitive.name, *(literal_key(x) for x in eqn.invars if not is_var(x))) for eqn in jaxpr.eqns]
    return hash((len(jaxpr.invars), len(jaxpr.outvars), *said))


def _same(a: Jaxpr, b: Jaxpr) -> bool:
    if len(a.eqns) != len(b.eqns) or a.effects or b.effects:
        return False
    names: dict[Var, Var] = {}

    def bind(xs: list[Var], ys: list[Var]) -> bool:
        names.update(zip(xs, ys, strict=False))
        return len(xs) == len(ys) and all(_type(x) == _type(y) for x, y in zip(xs, ys, strict=True))

    def equal(x: Atom, y: Atom) -> bool:
        if isinstance(x, Literal) or isinstance(y, Literal):
            return literal_key(x) == literal_key(y)
        return names.get(x) is y

    def equals(xs: list[Atom], ys: list[Atom]) -> bool:
        return len(xs) == len(ys) and all(equal(x, y) for x, y in zip(xs, ys, strict=True))

    return (
        bind(list(a.constvars), list(b.constvars))
        and bind(list(a.invars), list(b.invars))
        and all(
            _same_operation(p, q) and equals(list(p.invars), list(q.invars)) and bind(list(p.outvars), list(q.outvars))
            for p, q in zip(a.eqns, b.eqns, strict=True)
        )
        and equals(list(a.outvars), list(b.outvars))
    )


def _same_operation(p: JaxprEqn, q: JaxprEqn) -> bool:
    if p.primitive is not q.primitive or p.primitive.name in KEPT_APART or p.effects or q.effects or p.ctx != q.ctx:
        return False
    return p.params.keys() == q.params.keys() and all(
        param_key(p.params[k]) == param_key(q.params[k]) for k in p.params
    )


def _type(v: Var) -> Any:
    return isinstance(v, DropVar) or (v.aval, getattr(v.aval, "weak_type", False))


def literal_key(x: Atom) -> Any:
    """Equal for literals of one type with the same bits; of a variable, itself."""
    if not isinstance(x, Literal):
        return x
    value = np.asarray(x.val)
    # bytes, not equality: 0.0 == -0.0, and nan != nan
    return ("literal", value.tobytes(), value.dtype.str, value.shape, x.aval)


def param_key(value: Any) -> Any:
    """A parameter of an equation as a key; bodies are equal if they compute the same."""
    if isinstance(value, (ClosedJaxpr, Jaxpr)):
        return Body(value)
    if isinstance(value, tuple):
        return tuple(map(param_key, value))
    if isinstance(value, np.integer):  # a transposed slice has such bounds, and a batched one has both kinds
        value = int(value)
    return (type(value), value)
