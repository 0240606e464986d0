"""Weights by length and direction."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, at

from ._adapter import Parameter, value_of
from ._position import StandIn
from ._sequential import called


class WeightNorm(Module):
    """A layer with the weight `g * v / |v|`: its length is a parameter of its own (Salimans and Kingma 2016).

    Attributes:
        layer: the layer, whose weight is `v`.
        g: the lengths, with size 1 along the axes that they are taken over.

    Args:
        layer: any layer with an attribute `weight_name`.
        weight_name: the path of the weight in it.
        axis: the axis of the weight along which lengths are separate; None for one length.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.Linear(3, 4, key=jax.random.key(0))
    >>> bool(jnp.allclose(ag.nn.WeightNorm(layer)(jnp.ones(3)), layer(jnp.ones(3)), atol=1e-6))
    True
    """

    layer: Any
    g: Parameter
    weight_name: str
    axis: int | None

    def __init__(self, layer: Any, weight_name: str = "weight", axis: int | None = 0) -> None:
        weight = value_of(at(layer)[weight_name].get())
        if axis is not None and not -weight.ndim <= axis < weight.ndim:
            wanted = f"an axis of the weight, which has {weight.ndim}, or None"
            raise UsageError(argument="axis", got=axis, wanted=wanted, function="WeightNorm")
        self.layer = layer
        self.weight_name = weight_name
        self.axis = axis
        self.g = _length(weight, axis)

    def __call__(self, x: Any, *args: Any, key: jax.Array | None = None, **kwargs: Any) -> Any:
        """The layer's result, with the normalised weight in it."""
        v = value_of(at(self.layer)[self.weight_name].get())
        weight = v * (value_of(self.g) / _length(v, self.axis))
        stand_in = StandIn(at(self.layer)[self.weight_name].set(weight), "layer")
        return called(stand_in.layer, x, *args, key=key, **kwargs)


def _length(v: Any, axis: int | None) -> jax.Array:
    axes = tuple(i for i in range(v.ndim) if axis is None or i != axis % v.ndim)
    return jnp.sqrt(jnp.sum(v * v, axes, keepdims=True))
