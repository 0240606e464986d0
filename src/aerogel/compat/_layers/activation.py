"""Activations with parameters."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module


class PReLU(Module):
    """Equinox's `PReLU`: `x` where it is not negative, else `negative_slope * x`.

    `aerogel.nn.PReLU` calls the slope `weight`, and has one for each channel on request.
    """

    negative_slope: jax.Array

    def __init__(self, init_alpha: Any = 0.25) -> None:
        self.negative_slope = jnp.asarray(init_alpha)

    def __call__(self, x: jax.Array) -> jax.Array:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return jnp.where(x >= 0, x, self.negative_slope * x)
