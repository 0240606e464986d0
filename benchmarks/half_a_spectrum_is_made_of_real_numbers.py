"""Claim: of real numbers half a spectrum is made, where the half is all that is read or the result is real again.

The expert's forms are those with `rfft` and `irfft`.
"""

from __future__ import annotations

import jax.numpy as jnp

from ._case import Bounds, Case, normal

LENGTH = 65_536
HALF = Bounds(over_hand=1.10, over_natural=0.8)


def signals():
    return (normal(0, 16, LENGTH),)


def images():
    return (normal(0, 4, 512, 512),)


def pairs():
    return normal(0, 256, 4096), normal(1, 256, 4096)


def power(x):
    return jnp.abs(jnp.fft.fft(x))[:, : LENGTH // 2 + 1] ** 2


def power_by_hand(x):
    z = jnp.fft.rfft(x)
    return z.real**2 + z.imag**2


def decibels(x):
    size = jnp.abs(jnp.fft.fft(x * jnp.hanning(LENGTH)))[..., 1 : LENGTH // 2]
    return 20 * jnp.log10(size + 1e-9)


def decibels_by_hand(x):
    size = jnp.abs(jnp.fft.rfft(x * jnp.hanning(LENGTH)))[..., 1 : LENGTH // 2]
    return 20 * jnp.log10(size + 1e-9)


def parts(x):
    z = jnp.fft.fft(x)
    return jnp.abs(z[:, :100]), jnp.angle(z[:, 50:3000])


def parts_by_hand(x):
    z = jnp.fft.rfft(x)
    return jnp.abs(z[:, :100]), jnp.angle(z[:, 50:3000])


def blurred(x, k):
    return jnp.fft.ifft(jnp.fft.fft(x) * jnp.fft.fft(k)).real


def blurred_by_hand(x, k):
    return jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), 4096)


CASES = (
    Case("power of signals", power, {"rfft": power_by_hand}, signals, bounds=HALF),
    Case("decibels", decibels, {"rfft": decibels_by_hand}, signals, bounds=HALF),
    Case("parts of a spectrum", parts, {"rfft": parts_by_hand}, signals, bounds=HALF),
    Case(
        "half of images' spectra",
        lambda x: jnp.abs(jnp.fft.fft2(x))[:, :, :257],
        {"rfft": lambda x: jnp.abs(jnp.fft.rfft2(x))},
        images,
        bounds=HALF,
    ),
    Case(
        "convolution of signals", blurred, {"rfft": blurred_by_hand}, pairs, grad=(0, 1), bounds=HALF, grad_bounds=HALF
    ),
)
