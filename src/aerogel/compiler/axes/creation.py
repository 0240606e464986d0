"""`iota`: the one value that depends on nothing but where in it one looks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import lax

from ..._jax import JaxprEqn
from .answer import Axis, Mapped, No
from .entry import Entry
from .rebind import bind


def _never(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int) -> No:
    return No(f"`{eqn.primitive.name}` has no inputs")


def _iota(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    axis, params = outs[0], eqn.params
    shape, dimension = params["shape"], params["dimension"]
    if shape[dimension] > np.iinfo(np.int32).max:
        return No("`iota` counts beyond 32 bits")
    counts = axis.dim == dimension

    def block(start: Any, size: int) -> list[Any]:
        resized = axis.resize(shape, size)
        if not counts:
            return bind(eqn, [], params | {"shape": resized})
        here = lax.iota(np.int32, resized[dimension])
        if axis.outer > 1:
            here = here // (size * axis.inner) * np.int32(length * axis.inner) + here % (size * axis.inner)
        here = here + lax.convert_element_type(start, np.int32) * np.int32(axis.inner)
        return [lax.broadcast_in_dim(lax.convert_element_type(here, params["dtype"]), resized, [dimension])]

    return Mapped((), (axis,), block, uses_start=counts)


ENTRIES = {"iota": Entry(_never, _iota)}
