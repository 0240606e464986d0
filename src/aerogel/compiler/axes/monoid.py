"""How partial results combine: an associative, commutative `combine` with its identity."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Monoid:
    """An operation on tuples of arrays that does not care about order or grouping.

    Laws: `combine(a, combine(b, c)) == combine(combine(a, b), c)`, `combine(a, b) == combine(b, a)` and
    `combine(a, identity(avals)) == a`, each up to floating-point rounding (exactly but for add and mul).

    Attributes:
        name: the name in reports.
        combine: `combine(a_tuple, b_tuple) -> tuple`, elementwise on arrays of equal shapes.
        identity: `identity(avals) -> tuple of arrays`; an aval is anything with `shape` and `dtype`.
        rounds: whether another order or grouping changes floating-point results.
    """

    name: str
    combine: Callable[[Values, Values], Values]
    identity: Callable[[Sequence[Any]], Values]
    rounds: bool = True


def lowest(dtype: Any) -> Any:
    """The value that `max` never prefers: minus infinity where the type has one."""
    return _extreme(dtype, -1)


def highest(dtype: Any) -> Any:
    """The value that `min` never prefers."""
    return _extreme(dtype, 1)


def _extreme(dtype: Any, sign: int) -> Any:
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.bool_(sign > 0)
    if jnp.issubdtype(dtype, np.integer):
        return np.array(jnp.iinfo(dtype).max if sign > 0 else jnp.iinfo(dtype).min, dtype)
    infinity = np.array(sign * np.inf).astype(dtype)
    # Some 8-bit floats have no infinity; the cast gives nan there.
    return infinity if np.isinf(infinity) else np.array(jnp.finfo(dtype).max if sign > 0 else jnp.finfo(dtype).min)


def single(
    name: str, combine: Callable[[Any, Any], Any], identity: Callable[[Any], Any], rounds: bool = False
) -> Monoid:
    """The monoid of an operation on single arrays; `identity` gives a number for a dtype."""
    return Monoid(
        name,
        lambda a, b: (combine(a[0], b[0]),),
        lambda avals: tuple(lax.full(aval.shape, identity(aval.dtype), aval.dtype) for aval in avals),
        rounds,
    )


def _all_ones(dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    return np.bool_(True) if dtype == np.bool_ else np.invert(np.zeros((), dtype))


ADD = single("add", lax.add, lambda dtype: 0, True)
MUL = single("mul", lax.mul, lambda dtype: 1, True)
MAX = single("max", lax.max, lowest)
MIN = single("min", lax.min, highest)
AND = single("and", lax.bitwise_and, _all_ones)
OR = single("or", lax.bitwise_or, lambda dtype: 0)
XOR = single("xor", lax.bitwise_xor, lambda dtype: 0)


def _arg_best(name: str, better: Callable[[Any, Any], Any], worst: Callable[[Any], Any]) -> Monoid:
    """(best value, its index): nan beats every number, equal values go to the smaller index, as in `jnp.argmax`."""

    def combine(a: Values, b: Values) -> Values:
        (a_value, a_index), (b_value, b_index) = a, b
        a_nan, b_nan = lax.ne(a_value, a_value), lax.ne(b_value, b_value)
        tie = lax.bitwise_or(lax.eq(a_value, b_value), lax.bitwise_and(a_nan, b_nan))
        wins = lax.bitwise_or(better(a_value, b_value), lax.bitwise_and(a_nan, lax.bitwise_not(b_nan)))
        take_a = lax.bitwise_or(wins, lax.bitwise_and(tie, lax.lt(a_index, b_index)))
        return lax.select(take_a, a_value, b_value), lax.select(take_a, a_index, b_index)

    def identity(avals: Sequence[Any]) -> Values:
        value, index = avals
        # The largest index loses every tie, also against a true minus infinity.
        return (
            lax.full(value.shape, worst(value.dtype), value.dtype),
            lax.full(index.shape, highest(index.dtype), index.dtype),
        )

    return Monoid(name, combine, identity, False)


ARGMAX = _arg_best("argmax", lax.gt, lowest)
ARGMIN = _arg_best("argmin", lax.lt, highest)

# By their names: "add", "mul", "max", "min", "and", "or", "xor", "argmax", "argmin".
MONOIDS = {monoid.name: monoid for monoid in (ADD, MUL, MAX, MIN, AND, OR, XOR, ARGMAX, ARGMIN)}
