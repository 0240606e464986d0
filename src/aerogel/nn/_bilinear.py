"""Bilinear maps of two last axes."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, field

from ._adapter import Parameter, value_of
from ._check import check_broadcasts, check_last_axes
from ._half import biased
from ._init import Initializer, default_dtype, drawn


class Bilinear(Module):
    """`x1 @ weight[k] @ x2 + bias[k]` for each k: from [..., in1_features], [..., in2_features] to [..., out_features].

    Attributes:
        weight: [out_features, in1_features, in2_features].
        bias: [out_features], or None.

    Args:
        in1_features: size of the last axis of the first input.
        in2_features: size of the last axis of the second input.
        out_features: size of the last axis of the result.
        use_bias: whether there is a bias.
        init: draws the weight as it is; by default uniform in ±1 / sqrt(in1_features), as in PyTorch.

    `dtype`, `bias_init` and `key` are as for `Linear`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.Bilinear(2, 3, 4, key=jax.random.key(0))(jnp.ones((5, 2)), jnp.ones((5, 3))).shape
    (5, 4)
    """

    weight: Parameter = field(axes=("out", "in1", "in2"))
    bias: Parameter | None = field(axes=("out",))
    in1_features: int
    in2_features: int
    out_features: int

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        use_bias: bool = True,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        dtype = default_dtype(dtype)
        of_weight, of_bias = jax.random.split(key)
        shape = (out_features, in1_features, in2_features)
        self.weight = drawn(init, of_weight, shape, dtype, fan_in=in1_features)
        self.bias = drawn(bias_init, of_bias, (out_features,), dtype, fan_in=in1_features) if use_bias else None
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features

    def __call__(self, x1: Any, x2: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x1` and `x2`; `key` is not used."""
        check_last_axes(self, x1, self.in1_features, name="first input")
        check_last_axes(self, x2, self.in2_features, name="second input")
        check_broadcasts(self, x2, (*jnp.shape(x1)[:-1], self.in2_features), 1, "second input")
        out = jnp.einsum("...i,oij,...j->...o", x1, value_of(self.weight), x2)
        return out if self.bias is None else biased(out, value_of(self.bias))
