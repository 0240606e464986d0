"""One spelling of an operation for all ways in which it is written: what a pattern and a program are compared by."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import _jax
from ..._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from ..program import inner_jaxprs
from ..same import literal_key, param_key

# Operations that only move, copy or convert what they are given: their number differs between ranks and dtypes, so
# the loose match looks past them.
PLUMBING = frozenset(
    "broadcast_in_dim convert_element_type copy copy_p expand_dims reshape squeeze stop_gradient transpose".split()
)
COMMUTATIVE = frozenset("add mul max min and or xor eq ne".split())
_SAME_AS = {"add_any": "add", "gt": "lt", "ge": "le", "square": "mul"}
# Arithmetic and creation stand everywhere; linear algebra and its like stand in few places. What stands in the fewest
# places is what a search begins at.
_EVERYWHERE = PLUMBING | frozenset(
    "abs add add_any and clamp concatenate dynamic_slice div eq full gather ge gt integer_pow iota is_finite jit le lt "
    "max min mul ne neg not or pad pow reduce_max reduce_min reduce_sum rem select_n sign slice sqrt square sub "
    "xor".split()
)
_CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call"})
_OFTEN = frozenset("dot_general exp log tanh logistic sin cos log1p expm1 rsqrt cumsum argmax".split())


def operation(eqn: JaxprEqn) -> str:
    """The name of what an equation computes; of a function with a derivative of its own, with what stands in it."""
    name = eqn.primitive.name
    if name in _CUSTOM:
        inside = {one.primitive.name for body in inner_jaxprs(eqn) for one in body.eqns}
        return " ".join([name, *sorted(inside - _EVERYWHERE)])
    return "mul" if _is_square(eqn) else _SAME_AS.get(name, name)


def operands(eqn: JaxprEqn) -> Sequence[Atom]:
    """What it is computed from: `a > b` is `b < a`, and a square is a product."""
    if eqn.primitive.name == "square" or _is_square(eqn):
        return (eqn.invars[0], eqn.invars[0])
    return eqn.invars[::-1] if eqn.primitive.name in ("gt", "ge") else eqn.invars


def _is_square(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "integer_pow" and eqn.params["y"] == 2


def rarity(eqn: JaxprEqn) -> int:
    """How few programs hold the operation: 0, 1 or 2."""
    name = eqn.primitive.name
    return 0 if name in _EVERYWHERE else 1 if name in _OFTEN else 2


def orders(wanted: Sequence[Atom], eqn: JaxprEqn) -> list[Sequence[Atom]]:
    """The orders in which the operands of an equation may stand for the `wanted` ones; a number stands for a number."""
    xs = operands(eqn)
    if operation(eqn) not in COMMUTATIVE or xs[0] is xs[1]:
        return [xs]
    numbers = [[isinstance(x, Literal) for x in atoms] for atoms in (wanted, xs)]
    if sum(numbers[0]) == sum(numbers[1]) == 1:
        return [xs if numbers[0] == numbers[1] else xs[::-1]]
    return [xs, xs[::-1]]


# Parameters of products alone: not of `mul`, which has none, when it is a square.
_SPELT_OUT = frozenset({"mul", "add", "lt", "le"})


def different_param(a: JaxprEqn, b: JaxprEqn, inside: bool = False) -> str | None:
    """The name of the first parameter in which two equations of one operation differ.

    Args:
        a, b: the equations.
        inside: whether they stand in the derivative rule of a function, which calls that function again: that call is
            then compared without its rule.
    """
    if operation(a) in _SPELT_OUT:
        return None
    if a.params.keys() != b.params.keys():
        return "parameters"
    custom = a.primitive.name in _CUSTOM
    for name in ("call_jaxpr", "symbolic_zeros") if custom else a.params:
        if not _same(a.params[name], b.params[name], inside):
            return name
    return "derivative rule" if custom and not inside and not _same_rule(a, b) else None


def _same_rule(a: JaxprEqn, b: JaxprEqn) -> bool:
    """Whether the rules of two custom derivatives compute the same: each trace makes new functions of them."""
    if a.primitive.name == "custom_jvp_call":
        ours, theirs = _jax.forward_rule(a), _jax.forward_rule(b)
        return ours is not None and theirs is not None and _same(ours, theirs, True)
    found = _jax.backward_rule(a), _jax.backward_rule(b)
    said = [(r.forward, r.backward, r.made, r.forwarded, r.zero) for r in found if r is not None]
    return len(said) == 2 and _same(said[0], said[1], True)


def _same(x: Any, y: Any, inside: bool) -> bool:
    """Whether two parameters are equal; NumPy's integers, which JAX's batching rules leave behind, are integers."""
    if x is y:
        return True
    if isinstance(x, ClosedJaxpr) and isinstance(y, ClosedJaxpr):
        return list(map(id, x.consts)) == list(map(id, y.consts)) and _same_body(x.jaxpr, y.jaxpr, inside)
    if isinstance(x, Jaxpr) and isinstance(y, Jaxpr):
        return _same_body(x, y, inside)
    if isinstance(x, tuple | list) and isinstance(y, tuple | list):
        return len(x) == len(y) and all(_same(p, q, inside) for p, q in zip(x, y, strict=True))
    return param_key(_plain(x)) == param_key(_plain(y))


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def _same_body(a: Jaxpr, b: Jaxpr, inside: bool) -> bool:
    """Whether two inner programs are the same, equation by equation."""
    if len(a.eqns) != len(b.eqns) or a.effects or b.effects:
        return False
    names: dict[Var, Var] = {}

    def bound(xs: Sequence[Var], ys: Sequence[Var]) -> bool:
        names.update(zip(xs, ys, strict=False))
        return len(xs) == len(ys) and all(x.aval == y.aval for x, y in zip(xs, ys, strict=True))

    def read(xs: Sequence[Atom], ys: Sequence[Atom]) -> bool:
        keys = [literal_key(x) if isinstance(x, Literal) else names.get(x) for x in xs]
        return keys == [literal_key(y) for y in ys]

    if not bound(a.constvars, b.constvars) or not bound(a.invars, b.invars):
        return False
    for p, q in zip(a.eqns, b.eqns, strict=True):
        same = p.primitive is q.primitive and p.ctx == q.ctx and different_param(p, q, inside) is None
        if not same or not read(p.invars, q.invars) or not bound(p.outvars, q.outvars):
            return False
    return read(a.outvars, b.outvars)
