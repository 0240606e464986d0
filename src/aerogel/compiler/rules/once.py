"""Values that XLA computes once, however often they are read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn

from ..program import Makers, is_var

_BITS = {np.dtype(np.float32): np.uint32, np.dtype(np.float64): np.uint64} | {
    np.dtype(f"{sign}int{n}"): np.dtype(f"uint{n}").type for sign in ("", "u") for n in (8, 16, 32, 64)
}


def can_be_stored(aval: Any) -> bool:
    """Whether `once` takes a value of such a type."""
    return getattr(aval, "dtype", None) in _BITS


def once(x: Any) -> Any:
    """x, an array of float32, float64 or integers, divided by one.

    XLA fuses what makes a value into those who read it, and so computes it again for each element that a broadcast or
    a shifted slice reads, unless it holds an operation that XLA knows to be dear. It takes `sin` for one, and the
    fifty cheap operations that stand for it for none. A quotient is; that this divisor is one (no bit is left after
    two shifts) only LLVM finds out, when all is fused, and drops the division.
    """
    return lax.div(x, lax.bitcast_convert_type(_none(x) + x.dtype.type(1).view(_BITS[x.dtype]), x.dtype))


def stored(x: Any) -> Any:
    """x, an array of float32 or float64, as a value that reductions read from memory.

    XLA's CPU backend hands a reduction, with what is computed entry by entry in front of it, to a library that takes no
    slices: where x is made of slices, each of them is written to memory first. The library takes no selection either.
    That this one selects x everywhere (no bit is left after two shifts) only LLVM finds out.
    """
    none = _none(x)
    return lax.select(lax.eq(none, lax.full_like(none, 0)), x, lax.full_like(x, 1))


def _none(x: Any) -> Any:
    """Zeros, made of the bits of x."""
    bits = lax.bitcast_convert_type(x, _BITS[x.dtype])
    last, one = lax.full_like(bits, 8 * x.dtype.itemsize - 1), lax.full_like(bits, 1)
    return lax.shift_right_logical(lax.shift_right_logical(bits, last), one)


def is_once_alone(places: Sequence[int], jaxpr: Jaxpr, makers: Makers) -> bool:
    """Whether the equations at some places of a level are parts of what `once` writes, and do nothing else."""
    eqns = [jaxpr.eqns[k] for k in places]
    return all(_is_division_by_bits(eqn, jaxpr, makers) for eqn in eqns) or _is_one(eqns)


def _is_one(eqns: Sequence[JaxprEqn]) -> bool:
    """Whether they make the bits of a one of the bits of a number."""
    names = [eqn.primitive.name for eqn in eqns]
    unsigned = all(v.aval.dtype in _BITS.values() for eqn in eqns for v in eqn.outvars)
    return unsigned and set(names) <= {"shift_right_logical", "add"} and names.count("shift_right_logical") > 1


def _is_division_by_bits(eqn: JaxprEqn, jaxpr: Jaxpr, makers: Makers) -> bool:
    if eqn.primitive.name != "div" or not is_var(eqn.invars[1]):
        return False
    made = makers.get(eqn.invars[1], -1)
    return made >= 0 and jaxpr.eqns[made].primitive.name == "bitcast_convert_type"
