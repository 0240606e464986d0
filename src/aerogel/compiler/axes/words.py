"""Random words of one key: each is made of the key and of its own number among all, so a block is made by itself."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax import lax

from ..._jax import JaxprEqn, prng_name, threefry2x32
from .answer import Axis, Mapped, No
from .rebind import shape_of

WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    """The words of one threefry key along a dimension of them, bit by bit the same."""
    axis, shape, width = outs[0], shape_of(eqn.outvars[0]), eqn.params["bit_width"]
    if shape_of(eqn.invars[0]) or prng_name(eqn.invars[0].aval) != "threefry2x32" or not axis.is_plain:
        return No("`random_bits` makes all words at once")
    if not eqn.ctx.threefry_partitionable:
        return No("`jax_threefry_partitionable` is off: each word hangs on how many there are")

    def block(start: Any, size: int, key: Any) -> list[Any]:
        first, second = jax.random.key_data(key)
        with jax.enable_x64(True):
            number, stride = lax.full(axis.resize(shape, size), np.uint64(0)), 1
            for dim in reversed(range(len(shape))):
                here = lax.broadcasted_iota(np.uint64, number.shape, dim)
                if dim == axis.dim:
                    here = here + lax.convert_element_type(start, np.uint64)
                number, stride = number + here * np.uint64(stride), stride * shape[dim]
            high = lax.convert_element_type(number >> np.uint64(32), np.uint32)
            high, low = threefry2x32(first, second, high, lax.convert_element_type(number, np.uint32))
            if width < 64:
                return [lax.convert_element_type(high ^ low, WORDS[width])]
            wide = lax.convert_element_type(high, np.uint64) << np.uint64(32)
            return [wide | lax.convert_element_type(low, np.uint64)]

    return Mapped((None,), (axis,), block, uses_start=True)
