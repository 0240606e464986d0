"""Reductions: over other dimensions they are mapped, over the axis they leave partial results."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._jax import JaxprEqn
from . import monoid
from .accumulate import accumulated, exactly
from .answer import Reduced
from .entry import Entry
from .labels import Axes, Labels, labelled
from .rebind import bind, shape_of


def _reduce(eqn: JaxprEqn) -> Labels:
    rank, axes = len(shape_of(eqn.invars[0])), eqn.params["axes"]
    kept = tuple(d for d in range(rank) if d not in axes)
    return Labels((tuple(range(rank)),), (kept,) * len(eqn.outvars))


def reduction(over: monoid.Monoid, rounds: bool = False) -> Entry:
    """The entry of a one-input reduction over the dimensions `axes`; `rounds` asks for a wide accumulator."""

    def reduced(eqn: JaxprEqn, ins: Axes) -> Reduced:
        if not rounds:
            return exactly(eqn, ins, over)

        def partial(inputs: list[Any], dtype: Any) -> Any:
            (operand,) = inputs
            return bind(eqn, [lax.convert_element_type(operand, dtype)], eqn.params)[0]

        return accumulated(eqn, ins, over, partial)

    return labelled(_reduce, reduced=reduced)


def _arg_reduction(over: monoid.Monoid) -> Entry:
    def reduced(eqn: JaxprEqn, ins: Axes) -> Reduced:
        (axis,) = ins
        assert axis is not None
        stride = shape_of(eqn.invars[0])[axis.dim] // axis.outer
        index_dtype = np.dtype(eqn.params["index_dtype"])

        def block(start: Any, size: int, x: Any) -> list[Any]:
            x = lax.stop_gradient(x)  # the result is an integer
            first = lax.convert_element_type(start, index_dtype) * index_dtype.type(axis.inner)
            if size * axis.inner * axis.outer == 1:
                value = lax.squeeze(x, [axis.dim])
                return [value, lax.broadcast(first, value.shape)]
            (place,) = bind(eqn, [x], eqn.params | {"axes": (axis.dim,)})
            value = jnp.take_along_axis(x, lax.expand_dims(place, [axis.dim]), axis.dim, mode="promise_in_bounds")
            if axis.outer > 1:
                place = place // (size * axis.inner) * stride + place % (size * axis.inner)
            return [lax.squeeze(value, [axis.dim]), place + first]

        return Reduced(ins, over, block, lambda value, index: [index], uses_start=True)

    return labelled(_reduce, reduced=reduced)


def _reduce_by_function(eqn: JaxprEqn) -> Labels:
    count, gone = len(eqn.invars) // 2, eqn.params["dimensions"]
    rank = len(shape_of(eqn.invars[0]))
    # The function is any computation: nothing says that partial results combine, so the reduced dimensions are mixed.
    dims = tuple(None if d in gone else d for d in range(rank))
    kept = tuple(d for d in dims if d is not None)
    return Labels((dims,) * count + ((),) * (len(eqn.invars) - count), (kept,) * len(eqn.outvars))


ENTRIES: dict[str, Entry] = {
    "reduce_sum": reduction(monoid.ADD, rounds=True),
    "reduce_prod": reduction(monoid.MUL, rounds=True),
    "reduce_max": reduction(monoid.MAX),
    "reduce_min": reduction(monoid.MIN),
    "reduce_and": reduction(monoid.AND),
    "reduce_or": reduction(monoid.OR),
    "reduce_xor": reduction(monoid.XOR),
    "argmax": _arg_reduction(monoid.ARGMAX),
    "argmin": _arg_reduction(monoid.ARGMIN),
    "reduce": labelled(_reduce_by_function),
}
