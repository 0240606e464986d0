"""Linear maps of several axes at once."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module

from ._adapter import Parameter, value_of
from ._check import check_axes, check_last_axes
from ._half import biased
from ._init import Initializer, axes_of, default_dtype, drawn


class Einsum(Module):
    """`jnp.einsum(equation, x, weight) + bias`.

    Attributes:
        weight: [*shape].
        bias: [*bias_shape], or None; it is added to the last axes of the result.

    Args:
        equation: of two operands, the input and the weight, with an explicit result: "...i,ihd->...hd".
        shape: of the weight.
        bias_shape: of the bias; None for none.
        init: draws the weight as it is; by default uniform in ±1 / sqrt of the product of the sizes summed over.

    `dtype`, `bias_init` and `key` are as for `Linear`.

    Raises:
        UsageError: the equation is not of that form, or the bias does not fit the last axes of its result.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> heads = ag.nn.Einsum("...i,ihd->...hd", (6, 2, 4), (2, 4), key=jax.random.key(0))
    >>> heads(jnp.ones((5, 6))).shape
    (5, 2, 4)
    """

    weight: Parameter
    bias: Parameter | None
    equation: str

    def __init__(
        self,
        equation: str,
        shape: Sequence[int],
        bias_shape: Sequence[int] | None = None,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        operands, arrow, result = equation.replace(" ", "").partition("->")
        axes = operands.split(",")
        if not arrow or len(axes) != 2 or len(axes[1]) != len(shape) or set(result) - set(operands):
            wanted = f"input and weight to result, the weight with {len(shape)} axes: '...i,io->...o'"
            raise UsageError(argument="equation", got=equation, wanted=wanted, function="Einsum")
        dtype = default_dtype(dtype)
        sizes = dict(zip(axes[1], shape, strict=True))
        if bias_shape is not None:
            _check_bias(bias_shape, result, sizes)
        fan_in = math.prod(size for axis, size in sizes.items() if axis not in result)
        of_weight, of_bias = jax.random.split(key)
        self.weight = drawn(init, of_weight, tuple(shape), dtype, fan_in=fan_in)
        self.bias = None if bias_shape is None else drawn(bias_init, of_bias, bias_shape, dtype, fan_in=fan_in)
        self.equation = equation

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        of_input, of_weight = self.equation.replace(" ", "").partition("->")[0].split(",")
        sizes: dict[str, int] = dict(zip(of_weight, self.weight.shape, strict=True))
        axes = ("..." if axis == "." else sizes.get(axis, axis) for axis in of_input.replace("...", "."))
        check_axes(self, x, *axes)
        out = jnp.einsum(self.equation, x, value_of(self.weight))
        return out if self.bias is None else biased(out, value_of(self.bias))


def _check_bias(shape: Sequence[int], result: str, sizes: dict[str, int]) -> None:
    """Whether a bias fits the last axes of a result, as far as the weight tells their sizes."""
    axes = result.rpartition("...")[2]
    fits = len(shape) <= len(axes) or "..." in result
    if fits and all(size in (1, sizes.get(axis, size)) for size, axis in zip(shape[::-1], axes[::-1], strict=False)):
        return
    wanted = f"sizes of the last axes of {result!r}, where {', '.join(f'{axis}={n}' for axis, n in sizes.items())}"
    raise UsageError(argument="bias_shape", got=tuple(shape), wanted=wanted, function="Einsum")


class LinearGeneral(Module):
    """A linear map of several last axes to several: from [..., *in_features] to [..., *out_features].

    Attributes:
        weight: [*in_features, *out_features].
        bias: [*out_features], or None.

    Args:
        in_features: sizes of the last axes of the input; an integer for one axis.
        out_features: sizes of the last axes of the result; an integer for one axis.
        use_bias: whether there is a bias.
        init: draws the weight, asked for [product of in_features, product of out_features].

    `dtype`, `bias_init` and `key` are as for `Linear`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.LinearGeneral((2, 3), 4, key=jax.random.key(0))(jnp.ones((5, 2, 3))).shape
    (5, 4)
    """

    weight: Parameter
    bias: Parameter | None
    in_features: tuple[int, ...]
    out_features: tuple[int, ...]

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: int | Sequence[int],
        use_bias: bool = True,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        self.in_features, self.out_features = axes_of(in_features), axes_of(out_features)
        dtype = default_dtype(dtype)
        fan_in, fan_out = math.prod(self.in_features), math.prod(self.out_features)
        of_weight, of_bias = jax.random.split(key)
        weight = drawn(init, of_weight, (fan_in, fan_out), dtype, fan_in=fan_in)
        self.weight = weight.reshape(*self.in_features, *self.out_features)
        self.bias = drawn(bias_init, of_bias, self.out_features, dtype, fan_in=fan_in) if use_bias else None

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_last_axes(self, x, *self.in_features)
        out = jnp.tensordot(x, value_of(self.weight), len(self.in_features))
        return out if self.bias is None else biased(out, value_of(self.bias))
