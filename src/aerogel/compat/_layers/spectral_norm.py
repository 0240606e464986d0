"""Weights with largest singular value 1, whose singular vectors are in a `State`."""

from typing import Any, Generic, TypeVar

import jax

from aerogel.module import field
from aerogel.nn._spectral_norm import _iterated, _matrix

from .._errors import CompatError
from .._tree import tree_at
from .sequential import StatefulLayer
from .state import State, StateIndex

L = TypeVar("L")


class SpectralNorm(StatefulLayer, Generic[L]):
    """Equinox's `SpectralNorm`. Without a state, it is `aerogel.nn.SpectralNorm`."""

    layer: L
    weight_name: str = field(static=True)
    uv_index: StateIndex[tuple[jax.Array, jax.Array]]
    num_power_iterations: int = field(static=True)
    eps: float = field(static=True)
    inference: bool

    def __init__(
        self,
        layer: L,
        weight_name: str,
        num_power_iterations: int = 1,
        eps: float = 1e-12,
        inference: bool = False,
        *,
        key: jax.Array,
    ) -> None:
        weight = getattr(layer, weight_name)
        if weight.ndim < 2:
            raise CompatError(
                what="a vector has no singular values.",
                place="SpectralNorm, argument `weight_name`",
                got=f"shape {weight.shape}",
                wanted="two axes or more",
                to_fix="name the weight of a linear layer or a convolution",
            )
        matrix = _matrix(weight)
        u, v = (
            jax.random.normal(one, (size,), matrix.dtype)
            for one, size in zip(jax.random.split(key), matrix.shape, strict=True)
        )
        self.layer, self.weight_name = layer, weight_name
        self.num_power_iterations, self.eps, self.inference = num_power_iterations, eps, inference
        self.uv_index = StateIndex(_iterated(matrix, u, v, 15, eps))

    def __call__(
        self, x: Any, state: State, *, key: jax.Array | None = None, inference: bool | None = None
    ) -> tuple[Any, State]:
        """The layer's result, and the state with better singular vectors; `key` is not used."""
        weight = getattr(self.layer, self.weight_name)
        matrix, (u, v) = _matrix(weight), state.get(self.uv_index)
        if not (self.inference if inference is None else inference):
            u, v = _iterated(jax.lax.stop_gradient(matrix), u, v, self.num_power_iterations, self.eps)
            state = state.set(self.uv_index, (u, v))
        layer: Any = tree_at(lambda layer: getattr(layer, self.weight_name), self.layer, weight / (u @ matrix @ v))
        return layer(x), state
