"""cbrt and pow of float32."""

import math
from typing import Any

import numpy as np
from jax import lax

from .wide import (
    INFINITY,
    LOWEST,
    SMALLEST_NORMAL,
    Narrow,
    Wide,
    bits_of,
    elementary,
    float64,
    horner,
    is_negative,
    like,
    narrow,
    polynomial,
    rounded,
    signed,
    widen,
    widen_all,
)

_ROOT_HALF = int(np.float32(math.sqrt(0.5)).view(np.int32))

# log2((1 + s) / (1 - s)) / s of s^2, where (1 + s) / (1 - s) is within a root of two from 1: relative error 2^-50.
_LOG = polynomial(lambda u: 2 / math.log(2) * np.arctanh(np.sqrt(u)) / np.sqrt(u), 0, (3 - math.sqrt(8)) ** 2, 8)
# 2^f, relative error 2^-36.
_POWER = polynomial(np.exp2, -1 / 2, 1 / 2, 8)
_LARGEST = 256.0  # beyond this, and below its negative, a power of two is inf or 0 in float32
# (127 - 127 / 3) * 2^23, less what centres the error of a third of the exponent: within 3.5 % of the root.
_THIRD = 709_958_130


def _integral(size: Narrow) -> tuple[Any, Narrow]:
    """Whether a number that is not negative is subnormal; and it, or where it is, its multiple of the smallest one."""
    bits = bits_of(size)
    subnormal = lax.lt(bits, like(bits, SMALLEST_NORMAL))
    return subnormal, lax.select(subnormal, lax.convert_element_type(bits, np.float32), size)


def _is_ordinary(size: Narrow) -> Any:
    """Whether a number that is not negative is neither 0 nor inf nor nan."""
    below = lax.bitcast_convert_type(bits_of(size) - np.int32(1), np.uint32)
    return lax.lt(below, like(below, INFINITY - 1))


@elementary(lax.cbrt)
def cbrt(x: Any) -> Any:
    """The cube root: a third of the exponent, and Halley's iteration twice."""
    size = lax.abs(x)
    subnormal, scaled = _integral(size)
    # One binary digit more makes the exponent of the smallest number a multiple of three.
    scaled = lax.select(subnormal, scaled * np.float32(2), scaled)
    target = widen(scaled)
    root = widen(lax.bitcast_convert_type(lax.div(bits_of(scaled), np.int32(3)) + np.int32(_THIRD), np.float32))
    for _ in range(2):  # 3.5e-2, 3e-5, 2e-14
        cube = root * root * root
        root = root * ((cube + target + target) / (cube + cube + target))
    root = lax.select(subnormal, root * float64(2.0 ** ((LOWEST - 1) // 3)), root)
    return lax.select(_is_ordinary(size), signed(narrow(root), x), x)


def _log(size: Narrow) -> Wide:
    """The logarithm to base 2 of a number that is not negative, relative error 2^-49."""
    subnormal, scaled = _integral(size)
    bits = bits_of(scaled)
    exponent = lax.shift_right_arithmetic(bits - np.int32(_ROOT_HALF), like(bits, 23))
    m = widen(lax.bitcast_convert_type(bits - lax.shift_left(exponent, like(bits, 23)), np.float32))
    exponent = lax.select(subnormal, exponent + np.int32(LOWEST), exponent)
    s = (m - float64(1)) / (m + float64(1))
    value = lax.convert_element_type(exponent, float64) + s * horner(s * s, _LOG)
    special = lax.select(lax.eq(size, like(size, 0)), like(value, -math.inf), widen(size))
    return lax.select(_is_ordinary(size), value, special)


def _power_of_two(x: Wide) -> Wide:
    """2^x, relative error 2^-36."""
    x = lax.min(lax.max(x, like(x, -_LARGEST)), like(x, _LARGEST))
    n = rounded(x)
    exponent = lax.bitcast_convert_type(n + float64(1.5 * 2**52 + 1023), np.uint64) << np.uint64(52)
    return horner(x - n, _POWER) * lax.bitcast_convert_type(exponent, float64)


@elementary(lax.pow)
def power(x: Any, y: Any) -> Any:
    """x to the power of y, as C99 defines it: 1 where y is 0 or x is 1, nan of x < 0 unless y is an integer."""
    size, negative = lax.abs(x), is_negative(x)
    log, wide = _log(size), widen_all(y)
    none = like(wide, 0)
    product = lax.select(lax.eq(log, none) | lax.eq(wide, none), none, wide * log)
    value = _power_of_two(product)
    integral = lax.eq(lax.floor(wide), wide)
    half = wide * float64(0.5)
    odd = integral & lax.ne(lax.floor(half), half)
    value = lax.select(negative & odd, -value, value)
    # Narrowed last: what follows is computed for each reader, 41 times where a broadcast to 41 rows reads it.
    return narrow(lax.select(negative & _is_ordinary(size) & ~integral, like(value, math.nan), value))
