"""Random zeros, in training only."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module

from ._check import needed_key, shown
from ._errors import InputError
from ._position import position_of


def _checked(p: float, function: str) -> float:
    if not 0 <= p <= 1:
        raise UsageError(argument="p", got=p, wanted="a probability from 0 to 1", function=function)
    return p


class Dropout(Module):
    """`x / (1 - p)` with a fraction `p` of entries set to zero; `x` itself in inference.

    Args:
        p: the probability that an entry becomes zero.
        inference: whether it does nothing. `ag.inference(model)` sets this everywhere.
        shared_axes: axes along which one decision holds for all entries: (-2, -1) zeroes whole channels of images, as
            PyTorch's `Dropout2d` does, and (-1,) behind a batch axis whole examples (stochastic depth).

    Raises:
        MissingKeyError: called in training without a key.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> dropout = ag.nn.Dropout(0.5)
    >>> sorted(set(dropout(jnp.ones(100), key=jax.random.key(0)).tolist()))
    [0.0, 2.0]
    >>> ag.inference(dropout)(jnp.ones(2)).tolist()
    [1.0, 1.0]
    """

    p: float
    inference: bool
    shared_axes: tuple[int, ...]

    def __init__(self, p: float = 0.5, inference: bool = False, *, shared_axes: Sequence[int] = ()) -> None:
        self.p = _checked(p, "Dropout")
        self.inference = inference
        self.shared_axes = tuple(shared_axes)

    def __call__(self, x: Any, *, key: jax.Array | None = None, inference: bool | None = None) -> jax.Array:
        """The result for `x`; `inference` stands for the attribute, where it is given."""
        if (self.inference if inference is None else inference) or self.p == 0:
            return x
        if self.p == 1:
            return jnp.zeros_like(x)
        shape = list(jnp.shape(x))
        for axis in self.shared_axes:
            if not -len(shape) <= axis < len(shape):
                raise InputError(
                    what=f"the input has no axis {axis}, along which decisions are shared.",
                    place=position_of(self),
                    got=shown(x),
                    wanted=f"an array with an axis {axis}",
                )
            shape[axis] = 1
        is_kept = jax.random.bernoulli(needed_key(self, key), 1 - self.p, shape)
        return jnp.where(is_kept, x / (1 - self.p), 0)


# The limit of selu for large negative inputs: -scale * alpha of jax.nn.selu.
_LOWEST = -1.7580993408473766


class AlphaDropout(Module):
    """Dropout for networks of `jax.nn.selu`: keeps mean 0 and variance 1 (Klambauer et al. 2017).

    Args:
        p: the probability that an entry is set to the lowest value of selu, before all are scaled and shifted.
        inference: whether it does nothing.

    Raises:
        MissingKeyError: called in training without a key.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> x = jax.random.normal(jax.random.key(0), (100_000,))
    >>> y = ag.nn.AlphaDropout(0.3)(x, key=jax.random.key(1))
    >>> bool(abs(y.mean()) < 0.02 and abs(y.std() - 1) < 0.02)
    True
    """

    p: float
    inference: bool

    def __init__(self, p: float = 0.5, inference: bool = False) -> None:
        self.p = _checked(p, "AlphaDropout")
        self.inference = inference

    def __call__(self, x: Any, *, key: jax.Array | None = None, inference: bool | None = None) -> jax.Array:
        """The result for `x`; `inference` stands for the attribute, where it is given."""
        if (self.inference if inference is None else inference) or self.p == 0:
            return x
        if self.p == 1:
            return jnp.zeros_like(x)
        scale = ((1 - self.p) * (1 + self.p * _LOWEST**2)) ** -0.5
        is_kept = jax.random.bernoulli(needed_key(self, key), 1 - self.p, jnp.shape(x))
        return scale * (jnp.where(is_kept, x, _LOWEST) - self.p * _LOWEST)
