"""Powers that are products of roots."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .operand import Operand
from .rule import rule

HALVES = (-2.5, -1.5, -0.5, 1.5, 2.5, 3.5)


@rule(
    exactness="finite",
    reason="roots and products come from vector instructions, a power takes a logarithm and an exponential",
    stage="final",
    platforms=("cpu",),
)
def half_power(x: Any, *, exponent: float = 1.5) -> Any:
    """A number to the power of a whole number and a half."""
    return x**exponent


@half_power.to
def _(x: Any, *, exponent: float) -> Any:
    if exponent < 0:  # the root of -0 is -0
        inverse = lax.rsqrt(x) / lax.integer_pow(x, int(-0.5 - exponent))
        return jnp.where(x == 0, jnp.asarray(np.inf, x.dtype), inverse)
    return lax.integer_pow(x, int(exponent - 0.5)) * jnp.sqrt(x)


@half_power.when
def _(x: Operand, *, exponent: float) -> bool | str:
    if x.dtype != np.float32:
        return f"measured for float32 alone, not for {x.dtype}"
    return exponent in HALVES or f"an exponent of {exponent:g}, not of {', '.join(map(str, HALVES))}"
