"""sin, cos and tan of float32: whole half turns are taken off exactly, whatever the size of the argument.

Payne and Hanek: of x / pi only those binary digits matter that stand near the point. x has 24 bits; a window of 1 / pi
that begins where the product is still a multiple of two, in parts of 29, 29 and 53 bits, gives two exact products in
float64 and a third one whose rounding is far below the result. Four windows serve all exponents. The float32 number
that is closest to a multiple of pi / 2 leaves 2^-33 of it, which the third part still resolves to 2^-61.
"""

import math
from typing import Any

import numpy as np
from jax import lax

from .wide import Narrow, Wide, elementary, float64, horner, like, narrow, polynomial, rounded, unless_tiny, widen

# floor(2^256 / pi)
_OVER_PI = 0x517CC1B727220A94FE13ABE8FA9A6EE06DB14ACC9E21C820FF28B1D5EF5DE2B0
_DIGITS = 256
_PART = 29
_STEP = 26  # exponents that one window serves
_FIRST = 51  # the first exponent for which the digits before the second window can be dropped


def _window(start: int) -> tuple[float, float, float]:
    """The digits of 1 / pi from weight 2^-start on, in parts of 29, 29 and 53 bits; in whole turns, that is halved."""
    parts, place = [], start - 1
    rest = _OVER_PI % (1 << (_DIGITS - place))
    for width in (_PART, _PART, 53):
        place += width
        part, rest = divmod(rest, 1 << (_DIGITS - place))
        parts.append(math.ldexp(part, -place - 1))
    first, second, third = parts
    return first, second, third


_WINDOWS = tuple(_window(start) for start in (1, *(1 + _FIRST - 24 + k * _STEP for k in range(3))))
_BORDERS = tuple(_FIRST + k * _STEP for k in range(3))

# sin(pi f) / f and cos(pi f) of f^2, relative error 2^-35; the latter on a quarter turn only.
_SINE = polynomial(lambda u: np.pi * np.sinc(np.sqrt(u)), 0, 1 / 4, 6)
_QUARTER_SINE = polynomial(lambda u: np.pi * np.sinc(np.sqrt(u)), 0, 1 / 16, 5)
_QUARTER_COSINE = polynomial(lambda u: np.cos(np.pi * np.sqrt(u)), 0, 1 / 16, 5)


def _half_turns(x: Narrow, offset: float = 0.0, doubled: int = 0) -> tuple[Wide, Any]:
    """f in [-1/2, 1/2] and n with 2^doubled * x / pi + offset = f + n, n being given as 2^52 times 3/2 + n, modulo two.

    The magnitude of f is right to 2^-28 of itself at the least.
    """
    size = lax.abs(x)
    beyond = [lax.ge(size, like(size, 2.0 ** (border - doubled))) for border in _BORDERS]
    wide = widen(x)
    first, second, third = (_chosen(wide, beyond, k, doubled) for k in range(3))
    p, q = wide * first, wide * second
    p, q = p - rounded(p), q - rounded(q)
    half_turns = (p + q) * float64(2)
    n = rounded(half_turns + float64(offset) if offset else half_turns)
    # n is subtracted before the smaller part is added: near a multiple of pi nothing of that is lost.
    whole = n - float64(offset) if offset else n
    f = ((p * float64(2) - whole) + q * float64(2)) + wide * (third * float64(2))
    return f, lax.bitcast_convert_type(n + float64(1.5 * 2**52), np.uint64)


def _chosen(x: Wide, beyond: list[Any], part: int, doubled: int) -> Wide:
    """The part of that window that serves the exponent of x."""
    a, b, c, d = (like(x, math.ldexp(window[part], doubled)) for window in _WINDOWS)
    return lax.select(beyond[1], lax.select(beyond[2], d, c), lax.select(beyond[0], b, a))


def _sine(f: Wide, n: Any) -> Narrow:
    """sin(pi * (f + n))."""
    value = f * horner(f * f, _SINE)
    return narrow(lax.bitcast_convert_type(lax.bitcast_convert_type(value, np.uint64) ^ (n << np.uint64(63)), float64))


@elementary(lax.sin)
def sin(x: Any) -> Any:
    """Sine."""
    return unless_tiny(x, _sine(*_half_turns(x)))


@elementary(lax.cos)
def cos(x: Any) -> Any:
    """Cosine: the sine of half a turn more, so that both are one function."""
    return _sine(*_half_turns(x, 0.5))


@elementary(lax.tan)
def tan(x: Any) -> Any:
    """Tangent: of the nearest quarter turn, the sine over the cosine, or less the inverse of that."""
    f, n = _half_turns(x, doubled=1)
    f = f * float64(0.5)
    sine, cosine = f * horner(f * f, _QUARTER_SINE), horner(f * f, _QUARTER_COSINE)
    odd = lax.ne(n & np.uint64(1), np.uint64(0))
    over, under = lax.select(odd, -cosine, sine), lax.select(odd, sine, cosine)
    return unless_tiny(x, narrow(over / under))
