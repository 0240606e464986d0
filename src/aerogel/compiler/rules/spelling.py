"""One spelling of an operation for all ways in which it is written: what a pattern and a program are compared by."""

from collections.abc import Sequence
from typing import Any

from ..._jax import Atom, JaxprEqn, Literal
from ..same import param_key

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
_OFTEN = frozenset("dot_general exp log tanh logistic sin cos log1p expm1 rsqrt cumsum argmax".split())


def operation(eqn: JaxprEqn) -> str:
    """The name of what an equation computes."""
    return "mul" if _is_square(eqn) else _SAME_AS.get(eqn.primitive.name, eqn.primitive.name)


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


def different_param(a: JaxprEqn, b: JaxprEqn) -> str | None:
    """The name of the first parameter in which two equations of one operation differ."""
    if operation(a) in _SPELT_OUT:
        return None
    if a.params.keys() != b.params.keys():
        return "parameters"
    for name in a.params:
        if not _same_param(a, b, name):
            return name
    return None


def _same_param(a: JaxprEqn, b: JaxprEqn, name: str) -> bool:
    x, y = a.params[name], b.params[name]
    if x is y:
        return True
    if name in _RULES:
        return _same_function(x, y)
    return param_key(_plain(x)) == param_key(_plain(y))


# Derivative rules are functions that each trace makes anew.
_RULES = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees"})


def _same_function(x: Any, y: Any) -> bool:
    if x == y:
        return True
    said = [getattr(getattr(f, "debug_info", None), "func_src_info", None) for f in (x, y)]
    return said[0] == said[1] and (said[0] is None or "custom_derivatives" not in said[0])


def _plain(value: Any) -> Any:
    """A parameter with plain integers in the place of NumPy's, which JAX's batching rules leave behind."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    kind = type(value)
    return int(value) if kind.__module__ == "numpy" and hasattr(value, "__index__") and kind.__name__ != "bool" else value
