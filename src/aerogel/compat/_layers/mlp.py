"""The multi-layer perceptron."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, field
from aerogel.nn._linear import Size

from .._leaves import is_array
from .._transforms import filter_vmap
from .linear import Linear


def _identity(x: Any) -> Any:
    return x


def _copies(activation: Callable[..., Any], *sizes: int) -> Callable[..., Any]:
    """An activation with axes of these sizes in front of its arrays: a copy for each neuron."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*sizes, *x.shape)) if is_array(x) else x, activation)


def _of_layer(activation: Callable[..., Any], index: Any) -> Callable[..., Any]:
    return jax.tree.map(lambda x: x[index] if is_array(x) else x, activation)


def _of_each(activation: Callable[..., Any], x: jax.Array) -> Any:
    """A copy of an activation called with each entry, as Equinox does: a function of the whole vector sees a number."""
    return filter_vmap(lambda one, entry: one(entry))(activation, x)


class MLP(Module):
    """Equinox's `MLP`: activations are called with one number at a time, and have their arrays for each neuron.

    `aerogel.nn.MLP` calls an activation with the whole array, and takes leading axes.
    """

    layers: tuple[Linear, ...]
    activation: Callable[..., Any]
    final_activation: Callable[..., Any]
    use_bias: bool = field(static=True)
    use_final_bias: bool = field(static=True)
    in_size: Size = field(static=True)
    out_size: Size = field(static=True)
    width_size: int = field(static=True)
    depth: int = field(static=True)
    scan: bool = field(static=True, default=False)

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        width_size: int,
        depth: int,
        activation: Callable[..., Any] = jax.nn.relu,
        final_activation: Callable[..., Any] = _identity,
        use_bias: bool = True,
        use_final_bias: bool = True,
        dtype: Any = None,
        *,
        scan: bool = False,
        key: jax.Array,
    ) -> None:
        def hidden(key: jax.Array) -> Linear:
            return Linear(width_size, width_size, use_bias, dtype, key=key)

        keys = jax.random.split(key, depth + 1)
        if depth == 0:
            self.layers = (Linear(in_size, out_size, use_final_bias, dtype, key=keys[0]),)
        else:
            first = Linear(in_size, width_size, use_bias, dtype, key=keys[0])
            between = (jax.vmap(hidden)(keys[1:depth]),) if scan else tuple(map(hidden, keys[1:depth]))
            self.layers = (first, *between, Linear(width_size, out_size, use_final_bias, dtype, key=keys[depth]))
        self.activation = _copies(activation, depth, width_size)
        self.final_activation = final_activation if out_size == "scalar" else _copies(final_activation, out_size)
        self.use_bias, self.use_final_bias = use_bias, use_final_bias
        self.in_size, self.out_size = in_size, out_size
        self.width_size, self.depth, self.scan = width_size, depth, scan

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """The result for one `x`, [in_size]; `key` is not used. Without hidden layers there are no activations."""

        def step(x: jax.Array, row: tuple[Any, Linear]) -> tuple[jax.Array, None]:
            index, layer = row
            return _of_each(_of_layer(self.activation, index), layer(x)), None

        *before, last = self.layers
        if not before:
            return last(x)
        stacked = before.pop() if self.scan else None
        for row in enumerate(before):
            x, _ = step(x, row)
        if stacked is not None:
            x, _ = jax.lax.scan(step, x, (jnp.arange(1, self.depth), stacked))
        x = last(x)
        return self.final_activation(x) if self.out_size == "scalar" else _of_each(self.final_activation, x)
