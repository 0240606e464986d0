"""Normalisation of groups of channels, each example by itself."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, field

from ._adapter import Parameter
from ._check import check_channels
from ._init import default_dtype
from ._layer_norm import narrowed, scaled, standardised, widened


class GroupNorm(Module):
    """Channels in groups, each group of each example with mean 0 and variance 1, times `weight` plus `bias`.

    Inputs are [..., channels, *space].

    Attributes:
        weight: [channels], or None.
        bias: [channels], or None.

    Args:
        groups: the number of groups; with one channel in each this is `InstanceNorm`.
        channels: the number of channels, a multiple of `groups`.
        eps: is added to the variance.
        channelwise_affine: whether there are weight and bias.
        num_spatial_dims: the number of axes behind the channels: 2 for images, 0 for vectors.
        dtype: of the parameters.

    Raises:
        UsageError: `channels` is no multiple of `groups`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.GroupNorm(2, 6)(jnp.ones((4, 6, 8, 8))).shape
    (4, 6, 8, 8)
    """

    weight: Parameter | None = field(axes=("channels",))
    bias: Parameter | None = field(axes=("channels",))
    groups: int
    channels: int
    eps: float
    num_spatial_dims: int

    def __init__(
        self,
        groups: int,
        channels: int,
        eps: float = 1e-5,
        channelwise_affine: bool = True,
        *,
        num_spatial_dims: int = 2,
        dtype: Any = None,
    ) -> None:
        if groups < 1 or channels % groups:
            raise UsageError(
                argument="groups", got=groups, wanted=f"a divisor of the {channels} channels", function="GroupNorm"
            )
        self.weight = jnp.ones(channels, default_dtype(dtype)) if channelwise_affine else None
        self.bias = jnp.zeros(channels, default_dtype(dtype)) if channelwise_affine else None
        self.groups = groups
        self.channels = channels
        self.eps = eps
        self.num_spatial_dims = num_spatial_dims

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_channels(self, x, self.channels, self.num_spatial_dims)
        wide = widened(x)
        at = wide.ndim - 1 - self.num_spatial_dims
        grouped = wide.reshape(*wide.shape[:at], self.groups, self.channels // self.groups, *wide.shape[at + 1 :])
        axes = tuple(range(-1 - self.num_spatial_dims, 0))
        out = standardised(grouped, axes, self.eps).reshape(wide.shape)
        return narrowed(scaled(out, self.weight, self.bias, self.num_spatial_dims), x)


class InstanceNorm(Module):
    """Each channel of each example with mean 0 and variance 1 over space, times `weight` plus `bias` if there are any.

    Inputs are [..., channels, *space].

    Attributes:
        weight: [channels], or None.
        bias: [channels], or None.

    Args:
        channels: the number of channels.
        eps: is added to the variance.
        channelwise_affine: whether there are weight and bias; by default not, as in PyTorch.
        num_spatial_dims: the number of axes behind the channels: 2 for images.
        dtype: of the parameters.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.InstanceNorm(6)(jnp.ones((4, 6, 8, 8))).shape
    (4, 6, 8, 8)
    """

    weight: Parameter | None = field(axes=("channels",))
    bias: Parameter | None = field(axes=("channels",))
    channels: int
    eps: float
    num_spatial_dims: int

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        channelwise_affine: bool = False,
        *,
        num_spatial_dims: int = 2,
        dtype: Any = None,
    ) -> None:
        self.weight = jnp.ones(channels, default_dtype(dtype)) if channelwise_affine else None
        self.bias = jnp.zeros(channels, default_dtype(dtype)) if channelwise_affine else None
        self.channels = channels
        self.eps = eps
        self.num_spatial_dims = num_spatial_dims

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_channels(self, x, self.channels, self.num_spatial_dims)
        out = standardised(widened(x), tuple(range(-self.num_spatial_dims, 0)), self.eps)
        return narrowed(scaled(out, self.weight, self.bias, self.num_spatial_dims), x)
