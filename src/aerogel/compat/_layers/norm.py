"""Normalisation of each example by itself. All take a state and hand it on, to stand where `BatchNorm` stood."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import nn
from aerogel.module import Module, field
from aerogel.nn._init import default_dtype
from aerogel.nn._layer_norm import scaled, standardised, widened

from .._errors import CompatError
from .sequential import ABSENT, with_state


class LayerNorm(nn.LayerNorm):
    """Equinox's `LayerNorm`; it takes leading axes too."""

    use_weight: bool = field(static=True)
    use_bias: bool = field(static=True)

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        elementwise_affine: bool | None = None,
    ) -> None:
        if elementwise_affine is not None:
            warnings.warn("elementwise_affine= is deprecated: use use_weight= and use_bias=", stacklevel=2)
            use_weight = use_bias = elementwise_affine
        super().__init__(shape, eps, use_weight, use_bias, dtype=dtype)
        self.use_weight, self.use_bias = use_weight, use_bias

    def __call__(self, x: Any, state: Any = ABSENT, *, key: jax.Array | None = None) -> Any:
        """The result for `x`, with the state if there is one; `key` is not used."""
        return with_state(super().__call__(x), state)


class RMSNorm(nn.RMSNorm):
    """Equinox's `RMSNorm`, which has a bias by default; it takes leading axes too."""

    use_weight: bool = field(static=True)
    use_bias: bool = field(static=True)

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__(shape, eps, use_weight, use_bias, dtype=dtype)
        self.use_weight, self.use_bias = use_weight, use_bias

    def __call__(self, x: Any, state: Any = ABSENT, *, key: jax.Array | None = None) -> Any:
        """The result for `x`, with the state if there is one; `key` is not used."""
        return with_state(super().__call__(x), state)


class GroupNorm(Module):
    """Equinox's `GroupNorm` of one example: [channels, *space], any number of axes of space.

    `aerogel.nn.GroupNorm` takes leading axes, and so is told how many there are behind the channels.
    """

    weight: jax.Array | None
    bias: jax.Array | None
    groups: int = field(static=True)
    channels: int | None = field(static=True)
    eps: float = field(static=True)
    channelwise_affine: bool = field(static=True)

    def __init__(
        self,
        groups: int,
        channels: int | None = None,
        eps: float = 1e-5,
        channelwise_affine: bool = True,
        dtype: Any = None,
    ) -> None:
        if (channels is None and channelwise_affine) or (channels or 0) % groups:
            raise CompatError(
                what="channels come in groups of one size, and each has its weight.",
                place="GroupNorm, argument `channels`",
                got=str(channels),
                wanted=f"a multiple of {groups}",
                to_fix="pass the number of channels; None goes with channelwise_affine=False",
            )
        dtype = default_dtype(dtype)
        self.weight = jnp.ones(channels, dtype) if channelwise_affine else None
        self.bias = jnp.zeros(channels, dtype) if channelwise_affine else None
        self.groups, self.channels, self.eps = groups, channels, eps
        self.channelwise_affine = channelwise_affine

    def __call__(self, x: jax.Array, state: Any = ABSENT, *, key: jax.Array | None = None) -> Any:
        """The result for `x`, with the state if there is one; `key` is not used."""
        channels, *space = x.shape
        grouped = widened(x).reshape(self.groups, channels // self.groups, *space)
        out = standardised(grouped, tuple(range(1, grouped.ndim)), self.eps).reshape(x.shape)
        return with_state(scaled(out, self.weight, self.bias, len(space)).astype(x.dtype), state)
