"""sin, cos and tan of float32: whole half turns are taken off exactly, whatever the size of the argument.

Payne and Hanek: of x / pi only those binary digits matter that stand near the point. x has 24 bits; a window of 1 / pi
that begins where the product is still a multiple of two, in parts of 29, 29, 29 and 53 bits, gives three exact products
in float64 and a fourth one whose rounding is far below the result. Two windows serve all exponents (four of three parts
take as many products less as they take selections more: a third more time with AVX2). The float32 number that is
closest to a multiple of pi / 2 leaves 2^-33 of it, which the last part still resolves to 2^-61.

That takes twice as long as what follows it. Of many numbers the squares are added up first: where that says that none
is beyond 2^20, as is usual, whole multiples of pi are subtracted from them all, in two parts as Cody and Waite do; up
to 2^27 the first two parts of the first window serve them all.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .wide import Narrow, Wide, elementary, float64, horner, like, narrow, polynomial, rounded, unless_tiny, widen

# floor(2^256 / pi)
_OVER_PI = 0x517CC1B727220A94FE13ABE8FA9A6EE06DB14ACC9E21C820FF28B1D5EF5DE2B0
_DIGITS = 256
_PART = 29
_BORDER = 80  # the first exponent for which the digits before the second window can be dropped


def _window(start: int) -> tuple[float, ...]:
    """The digits of 1 / pi from weight 2^-start on, in parts of 29, 29, 29 and 53 bits.

    The first two in whole turns, that is halved: of their products whole turns are taken off, one by one.
    """
    parts, place = [], start - 1
    rest = _OVER_PI % (1 << (_DIGITS - place))
    for width, turns in ((_PART, 1), (_PART, 1), (_PART, 0), (53, 0)):
        place += width
        part, rest = divmod(rest, 1 << (_DIGITS - place))
        parts.append(math.ldexp(part, -place - turns))
    return tuple(parts)


_WINDOWS = _window(1), _window(1 + _BORDER - 24)
# pi in two parts: 33 bits, whose multiples by up to 20 bits are exact, and 53. Of a number below 2^20 the multiple that
# is nearest leaves 2^-33 at the least, which these resolve to 2^-65.
_PI = (6746518852 * 2.0**-31, 1.2154201013012384e-10)
_LARGEST_NEAR = 2.0**20
# The first window in two parts, in half turns: of a number below 2^27 the product with the second is right to 2^-57.
_PARTS = (2 * _WINDOWS[0][0], 2 * _WINDOWS[0][1] + _WINDOWS[0][2] + _WINDOWS[0][3])
_LARGEST_MIDDLE = 2.0**27


Angle = tuple[Wide, Any]


class Reduction(NamedTuple):
    """How whole half turns are taken off, and the polynomials for what is left.

    Attributes:
        angle: f and n with x + offset half turns = f + n half turns, 2^doubled of which are one; f is at most half of
            one and is given in a unit of the reduction's own, n as 2^52 times 3/2 + n, modulo two.
        sine: sin(f) / f of f^2, relative error 2^-35.
        quarter_sine: the same on a quarter turn only, as is
        quarter_cosine: cos(f) of f^2.
    """

    angle: Callable[[Narrow, float, int], Angle]
    sine: tuple[float, ...]
    quarter_sine: tuple[float, ...]
    quarter_cosine: tuple[float, ...]


def _reduction(angle: Callable[[Narrow, float, int], Angle], half_turn: float) -> Reduction:
    """The reduction with its polynomials, for angles of which so much is half a turn."""
    unit = np.pi / half_turn
    return Reduction(
        angle,
        polynomial(lambda u: unit * np.sinc(np.sqrt(u) / half_turn), 0, (half_turn / 2) ** 2, 6),
        polynomial(lambda u: unit * np.sinc(np.sqrt(u) / half_turn), 0, (half_turn / 4) ** 2, 5),
        polynomial(lambda u: np.cos(unit * np.sqrt(u)), 0, (half_turn / 4) ** 2, 5),
    )


def _far(x: Narrow, offset: float, doubled: int) -> Angle:
    """Of any number, in half turns; right to 2^-28 of itself at the least."""
    wide = widen(x)
    beyond = lax.ge(lax.abs(wide), like(wide, 2.0 ** (_BORDER - doubled)))
    p, q, r, rest = (wide * _chosen(beyond, pair, doubled) for pair in zip(*_WINDOWS, strict=True))
    p, q = p - rounded(p), q - rounded(q)
    p, q = p + p, q + q
    n = rounded(p + q + r + float64(offset))
    # n is subtracted before the smaller parts are added: near a multiple of pi nothing of them is lost.
    f = p - (n - float64(offset)) + q + r + rest
    return f * float64(0.5**doubled), _parity(n)


def _middle(x: Narrow, offset: float, doubled: int) -> Angle:
    """Of a number below 2^27, in half turns."""
    wide = widen(x)
    p, q = (wide * float64(math.ldexp(part, doubled)) for part in _PARTS)
    n = rounded(p + q + float64(offset))
    return (p - (n - float64(offset)) + q) * float64(0.5**doubled), _parity(n)


def _near(x: Narrow, offset: float, doubled: int) -> Angle:
    """Of a number below 2^20, in radians."""
    wide = widen(x)
    n = rounded(wide * float64(2**doubled / np.pi) + float64(offset))
    k = n - float64(offset)
    return wide - k * float64(_PI[0] / 2**doubled) - k * float64(_PI[1] / 2**doubled), _parity(n)


def _parity(n: Wide) -> Any:
    """The integer in whose last bit stands whether n, of less than 52 bits, is odd."""
    return lax.bitcast_convert_type(n + float64(1.5 * 2**52), np.uint64)


def _chosen(beyond: Any, parts: tuple[float, float], doubled: int) -> Wide:
    """Of two parts, the one for a small number or the one for a number beyond the border."""
    small, large = (lax.full(beyond.shape, math.ldexp(part, doubled), float64) for part in parts)
    return lax.select(beyond, large, small)


_FAR, _MIDDLE, _NEAR = _reduction(_far, 1.0), _reduction(_middle, 1.0), _reduction(_near, np.pi)


def _sine(x: Narrow, offset: float, by: Reduction) -> Narrow:
    """The sine of x and so many half turns."""
    f, n = by.angle(x, offset, 0)
    value = f * horner(f * f, by.sine)
    return narrow(lax.bitcast_convert_type(lax.bitcast_convert_type(value, np.uint64) ^ (n << np.uint64(63)), float64))


def _sin(x: Narrow, by: Reduction) -> Narrow:
    return unless_tiny(x, _sine(x, 0.0, by))


def _cos(x: Narrow, by: Reduction) -> Narrow:
    return _sine(x, 0.5, by)


def _tan(x: Narrow, by: Reduction) -> Narrow:
    f, n = by.angle(x, 0.0, 1)
    sine, cosine = f * horner(f * f, by.quarter_sine), horner(f * f, by.quarter_cosine)
    odd = lax.ne(n & np.uint64(1), np.uint64(0))
    over, under = lax.select(odd, -cosine, sine), lax.select(odd, sine, cosine)
    return unless_tiny(x, narrow(over / under))


@elementary(lax.sin)
def sin(x: Any) -> Any:
    """Sine."""
    return _sin(x, _FAR)


@elementary(lax.cos)
def cos(x: Any) -> Any:
    """Cosine: the sine of half a turn more, so that both are one function."""
    return _cos(x, _FAR)


@elementary(lax.tan)
def tan(x: Any) -> Any:
    """Tangent: of the nearest quarter turn, the sine over the cosine, or less the inverse of that."""
    return _tan(x, _FAR)


def _by_size(x: Narrow, function: Callable[[Narrow, Reduction], Narrow]) -> Narrow:
    square = jnp.sum(x * x)
    # Of nan all is beyond.
    beyond = (~lax.lt(square, np.float32(most**2)) for most in (_LARGEST_NEAR, _LARGEST_MIDDLE))
    which = sum(lax.convert_element_type(each, np.int32) for each in beyond)
    return lax.switch(which, [lambda x, by=by: function(x, by) for by in (_NEAR, _MIDDLE, _FAR)], x)


@elementary(lax.sin)
def sin_of_many(x: Any) -> Any:
    """Sine, in less time where no number is large: what it takes to see that is little beside many elements."""
    return _by_size(x, _sin)


@elementary(lax.cos)
def cos_of_many(x: Any) -> Any:
    """Cosine, in the same way."""
    return _by_size(x, _cos)


@elementary(lax.tan)
def tan_of_many(x: Any) -> Any:
    """Tangent, in the same way."""
    return _by_size(x, _tan)
