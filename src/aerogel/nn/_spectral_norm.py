"""Weights with largest singular value 1."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, Variable, at

from ._adapter import value_of
from ._position import StandIn
from ._sequential import called


class SpectralNorm(Module):
    """A layer whose weight is divided by its largest singular value (Miyato et al. 2018).

    The singular value is estimated by power iterations, which go on from call to call: in training the model is called
    by `ag.stateful`. In inference the vectors stay as they are. A weight of more axes counts as a matrix with its first
    axis as rows.

    Attributes:
        layer: the layer, with the weight as it is trained.
        u, v: variables, the estimates of the singular vectors.

    Args:
        layer: any layer with an attribute `weight_name`.
        weight_name: the path of the weight in it.
        num_power_iterations: in each call.
        eps: the least length that is divided by.
        inference: whether there are no iterations. `ag.inference(model)` sets this everywhere.
        key: for the first vectors, which 15 iterations improve at once, as in PyTorch.

    Raises:
        StateError: called in training outside of `ag.stateful`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.SpectralNorm(ag.nn.Linear(3, 3, False, key=jax.random.key(0)), key=jax.random.key(1))
    >>> matrix = jax.vmap(ag.inference(layer))(jnp.eye(3))
    >>> bool(abs(jnp.linalg.norm(matrix, 2) - 1) < 1e-3)
    True
    """

    layer: Any
    u: Variable
    v: Variable
    weight_name: str
    num_power_iterations: int
    eps: float
    inference: bool

    def __init__(
        self,
        layer: Any,
        weight_name: str = "weight",
        num_power_iterations: int = 1,
        eps: float = 1e-12,
        inference: bool = False,
        *,
        key: jax.Array,
    ) -> None:
        weight = at(layer)[weight_name].get()
        if weight is None:
            raise UsageError(
                argument="weight_name", got=weight_name, wanted="the path of an array", function="SpectralNorm"
            )
        matrix = _matrix(weight)
        self.layer = layer
        self.weight_name = weight_name
        self.num_power_iterations = num_power_iterations
        self.eps = eps
        self.inference = inference
        of_u, of_v = jax.random.split(key)
        u, v = (jax.random.normal(k, (n,), matrix.dtype) for k, n in zip((of_u, of_v), matrix.shape, strict=True))
        u, v = _iterated(matrix, u / jnp.linalg.norm(u), v / jnp.linalg.norm(v), 15, eps)
        self.u, self.v = Variable(u), Variable(v)

    def __call__(
        self, x: Any, *args: Any, key: jax.Array | None = None, inference: bool | None = None, **kwargs: Any
    ) -> Any:
        """The layer's result, with the normalised weight in it."""
        weight = value_of(at(self.layer)[self.weight_name].get())
        matrix, u, v = _matrix(weight), self.u.get(), self.v.get()
        if not (self.inference if inference is None else inference):
            u, v = _iterated(jax.lax.stop_gradient(matrix), u, v, self.num_power_iterations, self.eps)
            self.u.set(u)
            self.v.set(v)
        stand_in = StandIn(at(self.layer)[self.weight_name].set(weight / (u @ matrix @ v)), "layer")
        return called(stand_in.layer, x, *args, key=key, **kwargs)


def _matrix(weight: Any) -> jax.Array:
    array = value_of(weight)
    return array.reshape(array.shape[0], -1)


def _iterated(
    matrix: jax.Array, u: jax.Array, v: jax.Array, iterations: int, eps: float
) -> tuple[jax.Array, jax.Array]:
    """Better estimates of the singular vectors."""
    for _ in range(iterations):
        u = _unit(matrix @ v, eps)
        v = _unit(matrix.T @ u, eps)
    return u, v


def _unit(vector: jax.Array, eps: float) -> jax.Array:
    return vector / jnp.maximum(jnp.linalg.norm(vector), eps)
