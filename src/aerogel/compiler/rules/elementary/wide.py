"""What the functions of this family share: a float32 function is computed in float64 and rounded once.

Float64 keeps 29 bits more than the result, so that a plain polynomial without a correction ends within 0.501 of a unit
in the last place, where the C library ends at 0.56 to several. XLA makes vector code of it: half as many
lanes as float32 has, and still 3 to 12 times the speed of calls that go one element at a time.

XLA's CPU backend flushes subnormal numbers: whatever must see one reads its bits.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from aerogel import _jax

from ..once import once

Wide = Any  # an array of float64, also where JAX makes none by default
Narrow = Any  # an array of float32

float64 = np.float64
SIGN = np.uint32(1 << 31)
SMALLEST_NORMAL = 0x0080_0000  # its bits
INFINITY = 0x7F80_0000
LOWEST = -149  # the exponent of the smallest subnormal number


def elementary(natural: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a function of float32 arrays as one of any floats of up to 32 bits, with JAX's own derivative.

    Float16 and bfloat16 go through float32, as XLA does for `natural`, the operation of JAX that the function computes.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def computed(*xs: Any) -> Any:
            dtype, shape = xs[0].dtype, np.broadcast_shapes(*(x.shape for x in xs))
            with jax.enable_x64(True):
                y = function(*(_spread(lax.convert_element_type(x, np.float32), shape) for x in xs))
            return lax.convert_element_type(y, dtype)

        name, operands = f"vector_{function.__name__}", function.__code__.co_argcount
        return functools.wraps(function)(_jax.elementwise_primitive(name, natural, computed, operands))

    return decorate


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    """An operand in the shape of the result: JAX's operations take dimensions of size 1, and scalars, as they are."""
    return x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(x.ndim))


def widen(x: Narrow) -> Wide:
    """Float64 of a float32; of a subnormal one, zero."""
    return lax.convert_element_type(x, float64)


def widen_all(x: Narrow) -> Wide:
    """Float64 of a float32 that may be subnormal."""
    size = bits_of(lax.abs(x))
    exact = lax.convert_element_type(size, float64) * float64(2.0**LOWEST)
    wide = widen(x)
    return lax.select(lax.lt(size, like(size, SMALLEST_NORMAL)), lax.select(is_negative(x), -exact, exact), wide)


def narrow(x: Wide) -> Narrow:
    """The nearest float32, as a value that XLA computes once for all who read it."""
    return once(lax.convert_element_type(x, np.float32))


def like(x: Any, value: float) -> Any:
    """A constant in the shape and dtype of `x`."""
    return lax.full_like(x, value)


def polynomial(function: Callable[[Any], Any], low: float, high: float, terms: int) -> tuple[float, ...]:
    """The coefficients, that of the constant first, of the polynomial through the Chebyshev points of an interval."""
    points = np.polynomial.Chebyshev.interpolate(lambda x: function(x), terms - 1, (low, high))
    found = points.convert(kind=np.polynomial.Polynomial, domain=(-1, 1))
    return tuple(float(c) for c in np.resize(found.coef, terms))


def horner(x: Wide, coefficients: tuple[float, ...]) -> Wide:
    """A polynomial at x."""
    value = like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * x + float64(c)
    return value


def rounded(x: Any) -> Any:
    """The nearest integer, that which is even of two."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def bits_of(x: Narrow) -> Any:
    """The bits of a float32, as int32."""
    return lax.bitcast_convert_type(x, np.int32)


def is_negative(x: Narrow) -> Any:
    """Whether the sign bit is set: also of -0."""
    return lax.lt(bits_of(x), np.int32(0))


def signed(magnitude: Narrow, x: Narrow) -> Narrow:
    """`magnitude`, which is not negative, with the sign of x."""
    sign = lax.bitcast_convert_type(x, np.uint32) & SIGN
    return lax.bitcast_convert_type(lax.bitcast_convert_type(magnitude, np.uint32) | sign, np.float32)


def unless_tiny(x: Narrow, y: Narrow) -> Narrow:
    """y, but x itself where an odd function is x to the last bit: keeps -0 and subnormal numbers."""
    return lax.select(lax.lt(lax.abs(x), like(x, 2.0**-13)), x, y)
