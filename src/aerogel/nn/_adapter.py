"""Parameters that are kept in another form than the array that layers compute with."""

from abc import abstractmethod
from typing import Any

import jax

from aerogel.module import Module
from aerogel.module._array_like import ArrayLike


class AbstractAdapter(Module, ArrayLike):
    """A module that stands in the place of an array: `ag.at(model, "**.weight").apply(lambda w: MyAdapter(w))`.

    Every layer reads its parameters through `get`. What an adapter holds are leaves of the model, as all arrays are.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> class Positive(ag.nn.AbstractAdapter):
    ...     log: jax.Array
    ...     def get(self):
    ...         return jnp.exp(self.log)
    >>> layer = ag.nn.Linear(3, 2, key=jax.random.key(0))
    >>> layer = ag.at(layer).weight.set(Positive(jnp.zeros((2, 3))))
    >>> layer.weight.shape, (layer(jnp.ones(3)) - layer.bias).tolist()
    ((2, 3), [3.0, 3.0])
    """

    @abstractmethod
    def get(self) -> jax.Array:
        """The array."""


Parameter = jax.Array | AbstractAdapter


def value_of(parameter: Any) -> Any:
    """The array that a parameter stands for."""
    return parameter.get() if isinstance(parameter, ArrayLike) else parameter
