"""The multi-layer perceptron."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax

from aerogel._errors import UsageError
from aerogel.module import Module

from ._init import Initializer
from ._linear import Linear, Size


def _identity(x: Any) -> Any:
    return x


class MLP(Module):
    """`Linear` layers with an activation after each: from [..., in_size] to [..., out_size].

    Args:
        in_size: size of the last axis of the input, or "scalar".
        out_size: size of the last axis of the result, or "scalar".
        width_size: size between the layers.
        depth: the number of hidden layers: there are `depth + 1` linear ones.
        activation: after each layer but the last.
        final_activation: after the last one.
        use_bias: whether the layers but the last have biases.
        use_final_bias: whether the last one has one.

    `dtype`, `init`, `bias_init` and `key` are as for `Linear`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.MLP(2, "scalar", 16, 2, key=jax.random.key(0))(jnp.ones((5, 2))).shape
    (5,)
    """

    layers: tuple[Linear, ...]
    activation: Callable[[Any], Any]
    final_activation: Callable[[Any], Any]

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        width_size: int,
        depth: int,
        activation: Callable[[Any], Any] = jax.nn.relu,
        final_activation: Callable[[Any], Any] = _identity,
        use_bias: bool = True,
        use_final_bias: bool = True,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        if depth < 0:
            raise UsageError(argument="depth", got=depth, wanted="0 or more", function="MLP")
        sizes: list[Size] = [in_size, *[width_size] * depth, out_size]
        biases = [*[use_bias] * depth, use_final_bias]
        self.layers = tuple(
            Linear(*pair, use, dtype=dtype, init=init, bias_init=bias_init, key=one)
            for pair, use, one in zip(pairwise(sizes), biases, jax.random.split(key, depth + 1), strict=True)
        )
        self.activation = activation
        self.final_activation = final_activation

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.final_activation(self.layers[-1](x))
