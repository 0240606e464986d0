"""Normalisation of the last axes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, field

from ._adapter import Parameter, value_of
from ._check import check_last_axes
from ._init import axes_of, default_dtype
from ._ranks import aligned


class _Scaled(Module):
    """The weight and bias of a normalisation of the last axes."""

    weight: Parameter | None = field(axes=("features",))
    bias: Parameter | None = field(axes=("features",))
    shape: tuple[int, ...]
    eps: float

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        use_weight: bool = True,
        use_bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        self.shape = axes_of(shape)
        self.eps = eps
        self.weight = jnp.ones(self.shape, default_dtype(dtype)) if use_weight else None
        self.bias = jnp.zeros(self.shape, default_dtype(dtype)) if use_bias else None


class LayerNorm(_Scaled):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`, with mean and variance over the last axes.

    They are computed in 32 bits at least, and the result has the dtype of `x`, if that is no integer.

    Attributes:
        weight: [*shape], or None.
        bias: [*shape], or None.

    Args:
        shape: sizes of the last axes; an integer for one.
        eps: is added to the variance.
        use_weight: whether there is a weight, ones at first.
        use_bias: whether there is a bias, zeros at first.
        dtype: of the parameters.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.LayerNorm(3)(jnp.array([[1.0, 2.0, 3.0]])).round(3).tolist()
    [[-1.225000023841858, 0.0, 1.225000023841858]]
    """

    __init__ = _Scaled.__init__  # type checkers write one for a `Module` that has none

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_last_axes(self, x, *self.shape)
        wide = widened(x)
        out = standardised(wide, tuple(range(-len(self.shape), 0)), self.eps)
        return narrowed(scaled(out, self.weight, self.bias), x)


class RMSNorm(_Scaled):
    """`x / sqrt(mean of squares + eps) * weight + bias`, with the mean over the last axes.

    Arguments and attributes are those of `LayerNorm`, here without a bias by default.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.RMSNorm(2)(jnp.array([3.0, 3.0])).round(3).tolist()
    [1.0, 1.0]
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        use_weight: bool = True,
        use_bias: bool = False,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__(shape, eps, use_weight, use_bias, dtype=dtype)

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_last_axes(self, x, *self.shape)
        wide = widened(x)
        squares = jnp.mean(wide * wide, tuple(range(-len(self.shape), 0)), keepdims=True)
        out = wide * jax.lax.rsqrt(squares + self.eps)
        return narrowed(scaled(out, self.weight, self.bias), x)


def widened(x: Any) -> jax.Array:
    """`x` in a floating-point type of 32 bits at least: sums of squares overflow in narrower ones."""
    return jnp.asarray(x, wide_dtype(x))


def narrowed(out: jax.Array, x: Any) -> jax.Array:
    """`out` in the dtype of the input, if that is no integer."""
    dtype = jnp.result_type(x)
    return out.astype(dtype) if jnp.issubdtype(dtype, jnp.inexact) else out


def wide_dtype(x: Any) -> Any:
    """The dtype of `x` if it is one of 32 bits or more, else float32. It asks for no promotion, which may be off."""
    dtype = jnp.result_type(x)
    return dtype if jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize >= 4 else jnp.dtype(jnp.float32)


def standardised(x: jax.Array, axes: tuple[int, ...], eps: float) -> jax.Array:
    """`x` with mean 0 and variance 1 along the axes."""
    mean = jnp.mean(x, axes, keepdims=True)
    centred = x - mean
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + eps)


def scaled(x: jax.Array, weight: Any, bias: Any, trailing: int = 0) -> jax.Array:
    """`x * weight + bias`, where both begin `trailing` axes before the end of `x`."""
    for parameter, combine in ((weight, jnp.multiply), (bias, jnp.add)):
        if parameter is not None:
            value = value_of(parameter)
            x = combine(x, aligned(x, value, trailing).astype(x.dtype))
    return x
