"""What rounding may do to a value that is held at float64: random errors of the size that its own type would make.

An amplitude of zero makes none. The errors of one seed are a function of the values.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

# Traced once per shape and type, and not once per equation: that was half of a reference's time.
_shared = partial(_jax.original_jit, static_argnames="dtype")


@_shared
def summed(x: Any, y: Any, out: Any, amplitude: Any, seed: Any, *, dtype: Any) -> Any:
    """`out`, which is `x + y` or `x - y` in `dtype`: noise of the size of the terms."""
    exact = _small_integer(x, dtype) & _small_integer(y, dtype) | (x == 0) | (y == 0)
    scale = jnp.where(exact, 0.0, jnp.abs(x) + jnp.abs(y))
    return _in_range(_noise(out, dtype, scale, amplitude, seed), dtype, amplitude)


@_shared
def rounded(x: Any, amplitude: Any, seed: Any, *, dtype: Any) -> Any:
    """A result of type `dtype`: noise, unless the type holds the value exactly."""
    scale = jnp.where(_narrow(x, dtype) == x, 0.0, jnp.abs(x))
    return _in_range(_noise(x, dtype, scale, amplitude, seed), dtype, amplitude)


@_shared
def perturbed(x: Any, amplitude: Any, seed: Any, *, dtype: Any) -> Any:
    """A term of a sum that is accumulated in `dtype`; small integers add exactly."""
    # Each place has noise of its own: x and -x in one sum must not cancel exactly.
    place = lax.iota(jnp.uint64, x.size).reshape(x.shape) + np.uint64(2)
    amount = amplitude * float(jnp.finfo(dtype).eps) * jnp.abs(x)
    return jnp.where(_small_integer(x, dtype) | (amount == 0), x, x + amount * _units(x, place, seed))


def _noise(x: Any, dtype: Any, scale: Any, amplitude: Any, seed: Any) -> Any:
    """`x` moved by at most one unit of the last place that `scale` has in `dtype`.

    The random number is a function of the value, so that a value computed twice (recomputed, or compared with itself
    as the gradient of `max` does) stays one value.
    """
    amount = amplitude * float(jnp.finfo(dtype).eps) * scale
    return jnp.where(amount != 0, x + amount * _units(x, jnp.uint64(0), seed), x)


def _units(x: Any, salt: Any, seed: Any) -> Any:
    """Uniform in [-1, 1] per part, odd in `x`."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(_unit(jnp.real(x), salt, seed), _unit(jnp.imag(x), salt + np.uint64(1), seed))
    return _unit(x, salt, seed)


def _unit(x: Any, salt: Any, seed: Any) -> Any:
    """Uniform in [-1, 1], odd in `x` (splitmix64 of its bits)."""
    start = (seed + salt * np.uint64(0xD1342543DE82EF95)) * np.uint64(0x9E3779B97F4A7C15)
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.uint64) ^ start
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return jnp.sign(x) * ((bits >> np.uint64(11)).astype(jnp.float64) * 2.0**-52 - 1.0)


def _in_range(x: Any, dtype: Any, amplitude: Any) -> Any:
    """Overflow as `dtype` has it, in the noisy runs only: the reference itself is the exact answer."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x
    limit = float(jnp.finfo(dtype).max)
    return jnp.where((amplitude != 0) & (jnp.abs(x) > limit), jnp.sign(x) * jnp.inf, x)


def _narrow(x: Any, dtype: Any) -> Any:
    return x.astype(dtype).astype(x.dtype)


def _small_integer(x: Any, dtype: Any) -> Any:
    """Whether sums of a few of these are exact in `dtype`, in any order."""
    return (jnp.abs(x) <= 2.0 ** (jnp.finfo(dtype).nmant - 3)) & (jnp.round(x) == x)
