"""atan, atan2, asin and acos of float32."""

from typing import Any

import numpy as np
from jax import lax

from .wide import (
    Narrow,
    Wide,
    elementary,
    float64,
    horner,
    is_negative,
    like,
    narrow,
    polynomial,
    signed,
    unless_tiny,
    widen,
    widen_all,
)

# atan(z) / z of z^2, relative error 2^-36.
_ARCTANGENT = polynomial(lambda u: np.arctan(np.sqrt(u)) / np.sqrt(u), 0, 1, 14)
# asin(z) / z of z^2 up to half, relative error 2^-36.
_ARCSINE = polynomial(lambda u: np.arcsin(np.sqrt(u)) / np.sqrt(u), 0, 1 / 4, 9)


def _angle(over: Wide, under: Wide) -> Wide:
    """atan(over / under) of numbers that are not negative: 0 of 0 / 0, and an eighth of a turn of inf / inf."""
    steep = lax.gt(over, under)
    small, large = lax.select(steep, under, over), lax.select(steep, over, under)
    large = lax.select(lax.eq(large, like(large, 0)), like(large, 1), large)
    return _of_slope(lax.select(lax.eq(small, large), like(small, 1), small / large), steep)


def _of_slope(slope: Wide, steep: Any) -> Wide:
    """atan of a slope from 0 to 1, or where it is `steep`, of its inverse."""
    angle = slope * horner(slope * slope, _ARCTANGENT)
    return lax.select(steep, float64(np.pi / 2) - angle, angle)


@elementary(lax.atan)
def atan(x: Any) -> Any:
    """Arctangent: of the inverse beyond 1."""
    size = widen(lax.abs(x))
    steep = lax.gt(size, like(size, 1))
    slope = lax.select(steep, float64(1) / size, size)
    return unless_tiny(x, signed(narrow(_of_slope(slope, steep)), x))


@elementary(lax.atan2)
def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y): in (-pi, pi], or -pi where y is -0."""
    angle = _angle(widen_all(lax.abs(y)), widen_all(lax.abs(x)))
    return signed(narrow(lax.select(is_negative(x), float64(np.pi) - angle, angle)), y)


def _half_or_root(x: Narrow) -> tuple[Any, Wide]:
    """Whether |x| is beyond 1/2; and asin of |x|, or where it is beyond, of the root of (1 - |x|) / 2.

    asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2)), and 1 - a is exact.
    """
    size = widen(lax.abs(x))
    beyond = lax.gt(size, like(size, 0.5))
    square = lax.select(beyond, (float64(1) - size) * float64(0.5), size * size)
    return beyond, lax.select(beyond, lax.sqrt(square), size) * horner(square, _ARCSINE)


@elementary(lax.asin)
def asin(x: Any) -> Any:
    """Arcsine; nan beyond 1."""
    beyond, angle = _half_or_root(x)
    return unless_tiny(x, signed(narrow(lax.select(beyond, float64(np.pi / 2) - angle * float64(2), angle)), x))


@elementary(lax.acos)
def acos(x: Any) -> Any:
    """Arccosine; nan beyond 1."""
    beyond, angle = _half_or_root(x)
    negative = is_negative(x)
    from_end = lax.select(negative, float64(np.pi) - angle * float64(2), angle * float64(2))
    from_middle = float64(np.pi / 2) - lax.select(negative, -angle, angle)
    return narrow(lax.select(beyond, from_end, from_middle))
