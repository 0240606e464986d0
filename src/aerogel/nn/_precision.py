"""In which dtypes a layer keeps its parameters, computes, and gives its results."""

from typing import Any

import jax

from aerogel.module import Module, Where, cast

from ._position import StandIn
from ._sequential import called


class Precision(Module):
    """A layer, or a whole model, with dtypes of its own: float32 parameters, computed with in bfloat16, say.

    Gradients have the dtype of the parameters. Integers, bools and keys stay what they are.

    Args:
        layer: any module that is called.
        param: the dtype that parameters are kept in; None for what they are.
        compute: the dtype that parameters and inputs are cast to in a call; None for what they are.
        output: the dtype of the result; None for what it is.
        where: the parameters that are cast to `compute`, as for `ag.at`; all by default.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.Precision(ag.nn.Linear(3, 4, key=jax.random.key(0)), compute=jnp.bfloat16)
    >>> layer(jnp.ones(3)).dtype.name, jax.grad(lambda l: l(jnp.ones(3)).sum())(layer).layer.weight.dtype.name
    ('bfloat16', 'float32')
    """

    layer: Any
    compute: Any
    output: Any
    where: Where | None

    def __init__(
        self, layer: Any, *, param: Any = None, compute: Any = None, output: Any = None, where: Where | None = None
    ) -> None:
        self.layer = layer if param is None else cast(layer, param)
        self.compute = None if compute is None else jax.numpy.dtype(compute)
        self.output = None if output is None else jax.numpy.dtype(output)
        self.where = where

    def __call__(self, *args: Any, key: jax.Array | None = None, **kwargs: Any) -> Any:
        """The layer's result."""
        layer = self.layer
        if self.compute is not None:
            layer = cast(layer, self.compute, self.where)
            args, kwargs = cast((args, kwargs), self.compute)
        stand_in = StandIn(layer, "layer")
        out = called(stand_in.layer, *args, key=key, **kwargs)
        return out if self.output is None else cast(out, self.output)
