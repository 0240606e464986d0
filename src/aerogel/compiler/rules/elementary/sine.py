"""sin, cos and tan of float32: whole half turns are taken off exactly, whatever the size of the argument.

Payne and Hanek: of x / pi only those binary digits matter that stand near the point. x has 24 bits; a window of 1 / pi
that begins where the product is still a multiple of two, in parts of 29, 29, 29 and 53 bits, gives three exact products
in float64 and a fourth one whose rounding is far below the result. Two windows serve all exponents (four of three parts
take as many products less as they take selections more: a third more time with AVX2). The float32 number that is
closest to a multiple of pi / 2 leaves 2^-33 of it, which the last part still resolves to 2^-61.

The digits beyond the first two parts of the first window cost half of the time. Of many numbers the squares are added
up first: where that says that none is beyond 2^27, as is usual, these two serve them all.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

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
# The first window in two parts, in half turns: of a number below 2^27 the product with the second is right to 2^-57.
_PARTS = (2 * _WINDOWS[0][0], 2 * _WINDOWS[0][1] + _WINDOWS[0][2] + _WINDOWS[0][3])
_SQUARE = 2.0**54  # of the largest number that they serve

# sin(pi f) / f and cos(pi f) of f^2, relative error 2^-35; the latter on a quarter turn only.
_SINE = polynomial(lambda u: np.pi * np.sinc(np.sqrt(u)), 0, 1 / 4, 6)
_QUARTER_SINE = polynomial(lambda u: np.pi * np.sinc(np.sqrt(u)), 0, 1 / 16, 5)
_QUARTER_COSINE = polynomial(lambda u: np.cos(np.pi * np.sqrt(u)), 0, 1 / 16, 5)


Turns = tuple[Wide, Any]
Reduction = Callable[[Narrow, float, int], Turns]


def _far(x: Narrow, offset: float, doubled: int) -> Turns:
    """f in [-1/2, 1/2] and n with 2^doubled * x / pi + offset = f + n, n being given as 2^52 times 3/2 + n, modulo two.

    The magnitude of f is right to 2^-28 of itself at the least.
    """
    wide = widen(x)
    beyond = lax.ge(lax.abs(wide), like(wide, 2.0 ** (_BORDER - doubled)))
    p, q, r, rest = (wide * _chosen(beyond, pair, doubled) for pair in zip(*_WINDOWS, strict=True))
    p, q = p - rounded(p), q - rounded(q)
    return _nearest(p + p, q + q, r, rest, offset=offset)


def _near(x: Narrow, offset: float, doubled: int) -> Turns:
    """The same of numbers below 2^27."""
    wide = widen(x)
    return _nearest(*(wide * float64(math.ldexp(part, doubled)) for part in _PARTS), offset=offset)


def _nearest(*parts: Wide, offset: float) -> Turns:
    """f and n of a sum plus the offset; its parts become smaller."""
    n = rounded(functools.reduce(operator.add, parts[:3]) + float64(offset))
    # n is subtracted before the smaller parts are added: near a multiple of pi nothing of them is lost.
    f = functools.reduce(operator.add, parts[1:], parts[0] - (n - float64(offset)))
    return f, lax.bitcast_convert_type(n + float64(1.5 * 2**52), np.uint64)


def _chosen(beyond: Any, parts: tuple[float, float], doubled: int) -> Wide:
    """Of two parts, the one for a small number or the one for a number beyond the border."""
    small, large = (lax.full(beyond.shape, math.ldexp(part, doubled), float64) for part in parts)
    return lax.select(beyond, large, small)


def _sine(f: Wide, n: Any) -> Narrow:
    """sin(pi * (f + n))."""
    value = f * horner(f * f, _SINE)
    return narrow(lax.bitcast_convert_type(lax.bitcast_convert_type(value, np.uint64) ^ (n << np.uint64(63)), float64))


def _sin(x: Narrow, half_turns: Reduction) -> Narrow:
    return unless_tiny(x, _sine(*half_turns(x, 0.0, 0)))


def _cos(x: Narrow, half_turns: Reduction) -> Narrow:
    return _sine(*half_turns(x, 0.5, 0))


def _tan(x: Narrow, half_turns: Reduction) -> Narrow:
    f, n = half_turns(x, 0.0, 1)
    f = f * float64(0.5)
    sine, cosine = f * horner(f * f, _QUARTER_SINE), horner(f * f, _QUARTER_COSINE)
    odd = lax.ne(n & np.uint64(1), np.uint64(0))
    over, under = lax.select(odd, -cosine, sine), lax.select(odd, sine, cosine)
    return unless_tiny(x, narrow(over / under))


@elementary(lax.sin)
def sin(x: Any) -> Any:
    """Sine."""
    return _sin(x, _far)


@elementary(lax.cos)
def cos(x: Any) -> Any:
    """Cosine: the sine of half a turn more, so that both are one function."""
    return _cos(x, _far)


@elementary(lax.tan)
def tan(x: Any) -> Any:
    """Tangent: of the nearest quarter turn, the sine over the cosine, or less the inverse of that."""
    return _tan(x, _far)


def _by_size(x: Narrow, function: Callable[[Narrow, Reduction], Narrow]) -> Narrow:
    near = lax.lt(jnp.sum(x * x), np.float32(_SQUARE))  # not so of inf and nan
    return lax.cond(near, lambda x: function(x, _near), lambda x: function(x, _far), x)


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
