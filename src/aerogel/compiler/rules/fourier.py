"""Fourier transforms of real numbers, of which half is known from the other half."""

from typing import Any

import jax.numpy as jnp

from .operand import Operand
from .rule import rule

FEWEST = 2**16  # elements: docs/reference/catalogue-order.md


@rule(exactness="reassociates", reason="the transform of real numbers is symmetric: half of it is enough")
def real_convolution(x: Any, k: Any) -> Any:
    """The circular convolution of real numbers along the last axis, by complex transforms."""
    if jnp.iscomplexobj(x) or jnp.iscomplexobj(k):
        raise TypeError("complex numbers")
    return jnp.fft.ifft(jnp.fft.fft(x) * jnp.fft.fft(k)).real


@real_convolution.to
def _(x: Any, k: Any) -> Any:
    return jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), x.shape[-1])


@real_convolution.when
def _(x: Operand, k: Operand) -> bool | str:
    n, size = x.shape[-1], max(x.size, k.size)
    if k.shape[-1] != n:
        return "arrays of different lengths"
    if size < FEWEST:
        return f"{size} elements, fewer than {FEWEST}"
    return (n % 2 == 0 and _is_smooth(n)) or f"a length of {n}, which is odd or has a prime factor above 5"


def _is_smooth(n: int) -> bool:
    for p in (2, 3, 5):
        while n % p == 0:
            n //= p
    return n == 1
