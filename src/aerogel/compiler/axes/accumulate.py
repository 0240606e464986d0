"""`Reduced` answers whose partial results add, multiply, compare: with wider accumulators for narrow floats."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._jax import JaxprEqn
from .answer import Reduced
from .labels import Axes
from .monoid import Monoid
from .rebind import bind


def accumulator_dtype(dtype: Any) -> Any:
    """The type to keep partial sums and products of `dtype` in.

    XLA rounds one reduction of a narrow float once, at its end. Partial results of that type would be rounded once
    per block, so they are kept in float32.
    """
    dtype = jnp.dtype(dtype)
    return np.dtype(np.float32) if jnp.issubdtype(dtype, np.floating) and jnp.finfo(dtype).bits < 32 else dtype


def accumulated(eqn: JaxprEqn, ins: Axes, monoid: Monoid, partial: Callable[[list[Any], Any], Any]) -> Reduced:
    """A one-output `Reduced`; `partial(inputs, dtype)` is the result of a block in the accumulator's dtype."""
    dtype = eqn.outvars[0].aval.dtype
    wide = accumulator_dtype(dtype)

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        return [partial(list(inputs), wide)]

    def finish(total: Any) -> list[Any]:
        return [lax.convert_element_type(total, dtype)]

    return Reduced(ins, monoid, block, finish, alone=lambda *inputs: [partial(list(inputs), dtype)])


def exactly(eqn: JaxprEqn, ins: Axes, monoid: Monoid) -> Reduced:
    """A `Reduced` whose partial result is the equation itself on a block: for operations that never round."""

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        return bind(eqn, inputs, eqn.params)

    return Reduced(ins, monoid, block, lambda *totals: list(totals))
