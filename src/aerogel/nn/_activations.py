"""Activations with parameters. Those without are functions of `jax.nn`, which any layer takes as they are."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module

from ._adapter import Parameter, value_of
from ._check import check_channels
from ._half import unhalved
from ._init import default_dtype
from ._ranks import aligned


class PReLU(Module):
    """`x` where it is positive, else `weight * x`.

    Attributes:
        weight: [], or [channels].

    Args:
        channels: the number of slopes, one for each channel; None for one slope.
        init_value: of the slopes.
        num_spatial_dims: the number of axes behind the channels: 2 for images.
        dtype: of the slopes.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.PReLU()(jnp.array([-2.0, 2.0])).tolist()
    [-0.5, 2.0]
    """

    weight: Parameter
    channels: int | None
    num_spatial_dims: int

    def __init__(
        self, channels: int | None = None, init_value: float = 0.25, *, num_spatial_dims: int = 0, dtype: Any = None
    ) -> None:
        self.weight = jnp.full(() if channels is None else (channels,), init_value, default_dtype(dtype))
        self.channels = channels
        self.num_spatial_dims = num_spatial_dims

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        slope = value_of(self.weight)
        if self.channels is not None:
            check_channels(self, x, self.channels, self.num_spatial_dims)
            slope = aligned(x, slope, self.num_spatial_dims)
        x, dtype = jnp.asarray(x), jnp.result_type(x, slope)
        below = jnp.multiply(*unhalved((slope, x))).astype(dtype)
        return jnp.where(x > 0, x, below)
