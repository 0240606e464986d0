"""The front door: the table over primitives, the two questions asked of it, and `declare` for more primitives.

A primitive that is not in the table is never assumed to be anything: the answer is `No`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..._jax import JaxprEqn, Primitive, explicit_mesh, primitives
from .answer import Axis, Mapped, No
from .entry import Answer, Entry
from .rebind import rebind, shape_of

_TABLE: dict[Primitive, Entry] = {}


def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int, *, after_differentiation: bool = False) -> Answer:
    """What the equation is along an axis of `length` that is known to stand in some of its inputs.

    Args:
        eqn: the equation.
        ins: for some inputs, by position, where the axis stands. A variable that is given twice to the equation
            must have its axis at both positions.
        length: the length T of the axis.
        after_differentiation: whether the program will not be differentiated any more, so that functions with
            derivative rules of their own (custom_jvp, custom_vjp) may be looked into. Such blocks lose the rule.

    Returns:
        `Mapped` or `Reduced`, whose `ins` fill in the inputs left open, or `No`. Nothing is traced here.
    """
    if not ins:
        return _untouched(eqn)
    _check(eqn.invars, ins, length)
    refusal = _refusal(eqn)
    if refusal is not None:
        return refusal
    entry = _TABLE[eqn.primitive]
    return entry.along(eqn, ins, length, after_differentiation) if entry.nested else entry.along(eqn, ins, length)


def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    """What the equation is along an axis of `length` that is wanted at some of its outputs.

    The answer's `ins` say where it comes from; all None where the equation itself creates it (broadcast, iota).
    """
    if not outs:
        return _untouched(eqn)
    _check(eqn.outvars, outs, length)
    refusal = _refusal(eqn)
    return refusal if refusal is not None else _TABLE[eqn.primitive].along_output(eqn, outs, length)


def _untouched(eqn: JaxprEqn) -> Mapped | No:
    if eqn.effects:
        return No(f"`{eqn.primitive.name}` has effects")
    return Mapped((None,) * len(eqn.invars), (None,) * len(eqn.outvars), rebind(eqn))


def _check(atoms: Any, axes: Mapping[int, Axis], length: int) -> None:
    for position, axis in axes.items():
        shape = shape_of(atoms[position])
        assert axis.fits(shape, length), f"{axis} of length {length} does not fit a value of shape {shape}"


def _refusal(eqn: JaxprEqn) -> No | None:
    """Why no entry is asked at all."""
    if eqn.primitive not in _TABLE:
        return No(f"unknown primitive `{eqn.primitive.name}`")
    if eqn.effects:
        return No(f"`{eqn.primitive.name}` has effects")
    params = eqn.params
    if params.get("sharding") is not None or params.get("out_sharding") is not None:
        return No(f"`{eqn.primitive.name}` fixes the sharding of its result")
    if any(explicit_mesh(out.aval) for out in eqn.outvars):
        return No(f"the result of `{eqn.primitive.name}` is sharded by its type")
    return None


def install(entries: Mapping[str, Entry]) -> None:
    """Add the entries of JAX's primitives, by name; names that this version of JAX does not have are left out."""
    _TABLE.update({primitives[name]: entry for name, entry in entries.items() if name in primitives})


def register(primitive: Primitive, entry: Entry) -> None:
    """Add or replace the entry of one primitive."""
    _TABLE[primitive] = entry


def known_primitives() -> list[str]:
    """The names of all primitives in the table, sorted."""
    return sorted(primitive.name for primitive in _TABLE)


def has_entry(primitive: Primitive) -> bool:
    """Whether the table knows the primitive."""
    return primitive in _TABLE


AlongFunction = Callable[[JaxprEqn, Mapping[int, Axis], int], Answer]
AlongOutputFunction = Callable[[JaxprEqn, Mapping[int, Axis], int], Mapped | No]
