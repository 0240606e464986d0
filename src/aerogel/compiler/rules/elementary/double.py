"""The logarithm of float64: the C library's, one element at a time, becomes vector code.

As in Moshier's Cephes library: x = 2^k m with m in [sqrt(1/2), sqrt(2)), and with f = m - 1

    log(m) = f - f^2 / 2 + f^3 P(f) / Q(f),

of which f - f^2 / 2 and the multiple of log(2) are kept in two parts: within 0.65 units in the last place, where the
library ends at 0.52. There is no wider type to round from, as float32 has. (The form with f / (2 + f) reads a quotient
twice, which XLA stores.)
"""

import math
from typing import Any

import jax
import numpy as np
from jax import lax

from aerogel import _jax

from .wide import Wide, float64, horner, like

_MANTISSA = 52
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_SMALLEST_NORMAL, _INFINITY = 1 << 52, 0x7FF << 52
_NEGATIVE_ZERO = -1 << 63
_LOWEST = -1074  # the exponent of the smallest subnormal number
_HALF_OF_THE_BITS = -1 << 27
_LOG_2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)  # the first without its last 20 bits
_P = (
    7.70838733755885391666,
    17.9368678507819816313,
    14.4989225341610930846,
    4.70579119878881725854,
    0.497494994976747001425,
    1.01875663804580931796e-4,
)
_Q = (
    23.1251620126765340583,
    71.1544750618563894466,
    82.9875266912776603211,
    45.2279145837532221105,
    11.2873587189167450590,
    1.0,
)


def _computed(x: Any) -> Any:
    """The natural logarithm of float64."""
    with jax.enable_x64(True):
        bits = lax.bitcast_convert_type(x, np.int64)
        # XLA's CPU backend takes subnormal numbers for zero: their bits are an integer.
        subnormal = lax.lt(bits, like(bits, _SMALLEST_NORMAL))
        integral = lax.convert_element_type(bits, float64)
        value = _log(
            lax.select(subnormal, lax.bitcast_convert_type(integral, np.int64), bits),
            lax.select(subnormal, like(x, _LOWEST), like(x, 0)),
        )
        zero = lax.eq(bits, like(bits, 0)) | lax.eq(bits, like(bits, _NEGATIVE_ZERO))
        at_ends = lax.select(zero, like(x, -math.inf), like(x, math.nan))
        at_ends = lax.select(lax.ge(bits, like(bits, _INFINITY)), x, at_ends)
        return lax.select(lax.gt(bits, like(bits, 0)) & lax.lt(bits, like(bits, _INFINITY)), value, at_ends)


def _log(bits: Any, exponent: Wide) -> Wide:
    """The logarithm of 2^exponent times the positive normal number of these bits."""
    k = lax.shift_right_arithmetic(bits - np.int64(_ROOT_HALF), like(bits, _MANTISSA))
    m = lax.bitcast_convert_type(bits - lax.shift_left(k, like(bits, _MANTISSA)), float64)
    k = lax.convert_element_type(k, float64) + exponent
    f = m - float64(1)
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(f, np.int64) & np.int64(_HALF_OF_THE_BITS), float64)
    half, rest = high * high * float64(0.5), (f - high) * (f + high) * float64(0.5)
    near = f - half
    lost = (f - near) - half - rest
    whole = k * float64(_LOG_2[0])
    total = whole + near
    # What rounding took of the smaller part, which is `near` unless k is 0.
    lost += lax.select(lax.eq(k, like(k, 0)), like(k, 0), (whole - total) + near)
    cubic = f * (f * f * horner(f, _P) / horner(f, _Q))
    return total + (lost + cubic + k * float64(_LOG_2[1]))


log = _jax.elementwise_primitive("vector_log", lax.log, _computed, 1)
