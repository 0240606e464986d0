"""Random zeros, in training only."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module
from aerogel.nn._position import position_of

from .._errors import CompatError


def chosen(inference: bool | None, deterministic: bool | None, function: str) -> bool | None:
    """What to do in inference, by the argument's present or earlier name, which Equinox has deprecated."""
    if deterministic is None:
        return inference
    warnings.warn(f"{function}(deterministic=...) is deprecated: use inference=", stacklevel=3)
    return deterministic


class Dropout(Module):
    """Equinox's `Dropout`: the probability may be an array.

    Raises:
        CompatError: called in training without a key.
    """

    p: Any
    inference: bool

    def __init__(self, p: Any = 0.5, inference: bool = False, *, deterministic: bool | None = None) -> None:
        self.p = p
        self.inference = bool(chosen(inference, deterministic, "Dropout"))

    @property
    def deterministic(self) -> bool:
        """`inference`, by its earlier name."""
        return self.inference

    def __call__(
        self,
        x: jax.Array,
        *,
        key: jax.Array | None = None,
        inference: bool | None = None,
        deterministic: bool | None = None,
    ) -> jax.Array:
        inference = chosen(inference, deterministic, "Dropout()")
        is_off = isinstance(self.p, int | float) and self.p == 0
        if is_off or (self.inference if inference is None else inference):
            return x
        if key is None:
            raise CompatError(
                what="in training, dropout needs a key.",
                place=position_of(self),
                to_fix="pass one: dropout(x, key=key); to use the model without: eqx.nn.inference_mode(model)",
            )
        kept = 1 - jax.lax.stop_gradient(self.p)
        return jnp.where(jax.random.bernoulli(key, kept, x.shape), x / kept, 0)
