"""Layers that are added to what they are given."""

from collections.abc import Callable
from typing import Any

import jax

from aerogel.module import Module

from ._sequential import called


class Residual(Module):
    """`shortcut(x) + layer(x)`, then an activation if there is one.

    Attributes:
        layer: any layer, or function.
        shortcut: brings `x` into the shape of the result, where they differ; None for `x` itself.
        activation: of the sum; None for none.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> block = ag.nn.Residual(ag.nn.Linear(3, 3, key=jax.random.key(0)))
    >>> block(jnp.ones((5, 3))).shape
    (5, 3)
    """

    layer: Callable[..., Any]
    shortcut: Callable[..., Any] | None = None
    activation: Callable[[Any], Any] | None = None

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> Any:
        """The result for `x`; `key` is for both."""
        one, two = (None, None) if key is None else jax.random.split(key)
        straight = x if self.shortcut is None else called(self.shortcut, x, key=two)
        out = straight + called(self.layer, x, key=one)
        return out if self.activation is None else self.activation(out)
