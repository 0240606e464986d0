"""Linear maps of the last axis."""

from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp

from aerogel.module import Module, field

from ._adapter import Parameter, value_of
from ._check import check_last_axes
from ._half import biased
from ._init import Initializer, default_dtype, drawn

T = TypeVar("T")
Size = int | Literal["scalar"]


class Linear(Module):
    """`weight @ x + bias` along the last axis: from [..., in_features] to [..., out_features].

    Attributes:
        weight: [out_features, in_features].
        bias: [out_features], or None.

    Args:
        in_features: size of the last axis of the input. "scalar": the input has no such axis.
        out_features: size of the last axis of the result. "scalar": the result has none.
        use_bias: whether there is a bias.
        dtype: of the parameters; JAX's default floating-point type if None.
        init: draws the weight, asked for a shape [in_features, out_features]; by default uniform in
            ±1 / sqrt(in_features), as in PyTorch.
        bias_init: draws the bias; by default as the weight.
        key: for the parameters.

    Raises:
        InputError: called with another last axis.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.Linear(3, 4, key=jax.random.key(0))
    >>> layer
    Linear(weight=f32[4,3], bias=f32[4], in_features=3, out_features=4)
    >>> layer(jnp.ones((8, 3))).shape
    (8, 4)
    """

    weight: Parameter = field(axes=("out", "in"))
    bias: Parameter | None = field(axes=("out",))
    in_features: Size
    out_features: Size

    def __init__(
        self,
        in_features: Size,
        out_features: Size,
        use_bias: bool = True,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        fan_in, fan_out = (1 if size == "scalar" else size for size in (in_features, out_features))
        dtype = default_dtype(dtype)
        of_weight, of_bias = jax.random.split(key)
        self.weight = drawn(init, of_weight, (fan_out, fan_in), dtype, fan_in=fan_in, features=2)
        self.bias = drawn(bias_init, of_bias, (fan_out,), dtype, fan_in=fan_in) if use_bias else None
        self.in_features = in_features
        self.out_features = out_features

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        if self.in_features == "scalar":
            x = jnp.expand_dims(x, -1)
        check_last_axes(self, x, self.weight.shape[1])
        out = x @ value_of(self.weight).T
        if self.bias is not None:
            out = biased(out, value_of(self.bias))
        return out[..., 0] if self.out_features == "scalar" else out


class Identity(Module):
    """What it is called with. The arguments of its construction are ignored.

    >>> import aerogel as ag
    >>> ag.nn.Identity()(3)
    3
    """

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, x: T, *, key: jax.Array | None = None) -> T:
        """`x`; `key` is not used."""
        return x
