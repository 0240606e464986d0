"""Normalisation by the statistics of a batch, whose running ones are in a `State`."""

import warnings
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import field
from aerogel.nn._init import default_dtype
from aerogel.nn._layer_norm import scaled

from .sequential import StatefulLayer
from .state import State, StateIndex


class BatchNorm(StatefulLayer):
    """Equinox's `BatchNorm` of one example under `jax.vmap(..., axis_name=...)`: [channels, *space].

    In mode "ema" the running statistics normalise in training too; in mode "batch" those of the batch do. PyTorch's,
    for whole batches and without a state, is `aerogel.nn.BatchNorm`.
    """

    weight: jax.Array | None
    bias: jax.Array | None
    ema_first_time_index: StateIndex[jax.Array] | None
    ema_state_index: StateIndex[tuple[jax.Array, jax.Array]] | None
    batch_counter: StateIndex[jax.Array] | None
    batch_state_index: StateIndex[tuple[jax.Array, jax.Array]] | None
    axis_name: Hashable | Sequence[Hashable]
    inference: bool
    input_size: int = field(static=True)
    eps: float = field(static=True)
    channelwise_affine: bool = field(static=True)
    momentum: float = field(static=True)
    mode: Literal["ema", "batch"] = field(static=True)

    def __init__(
        self,
        input_size: int,
        axis_name: Hashable | Sequence[Hashable],
        eps: float = 1e-5,
        channelwise_affine: bool = True,
        momentum: float = 0.99,
        inference: bool = False,
        dtype: Any = None,
        mode: Literal["ema", "batch", "legacy"] = "legacy",
    ) -> None:
        if mode not in ("ema", "batch", "legacy"):
            raise UsageError(argument="mode", got=mode, wanted=["ema", "batch"], function="BatchNorm")
        if mode == "legacy":
            warnings.warn('BatchNorm takes mode="ema" if none is given: "batch" trains better', stacklevel=2)
            mode = "ema"
        dtype, is_ema = default_dtype(dtype), mode == "ema"
        mean, var = jnp.zeros(input_size, dtype), jnp.full(input_size, 0 if is_ema else 1, dtype)
        self.weight = jnp.ones(input_size, dtype) if channelwise_affine else None
        self.bias = jnp.zeros(input_size, dtype) if channelwise_affine else None
        self.ema_first_time_index = StateIndex(jnp.array(True)) if is_ema else None
        self.ema_state_index = StateIndex((mean, var)) if is_ema else None
        self.batch_counter = None if is_ema else StateIndex(jnp.array(0))
        self.batch_state_index = None if is_ema else StateIndex((mean, var))
        self.axis_name, self.inference = axis_name, inference
        self.input_size, self.eps, self.momentum = input_size, eps, momentum
        self.channelwise_affine, self.mode = channelwise_affine, mode

    def __call__(
        self, x: jax.Array, state: State, *, key: jax.Array | None = None, inference: bool | None = None
    ) -> tuple[jax.Array, State]:
        """The result for `x`, and the state with the new running statistics; `key` is not used."""
        is_inference = self.inference if inference is None else inference
        statistics = self._running if self.mode == "ema" else self._of_batch
        mean, var, state = statistics(x, state, is_inference)
        along = (-1, *[1] * (x.ndim - 1))
        out = (x - mean.reshape(along)) / jnp.sqrt(var + self.eps).reshape(along)
        return scaled(out, self.weight, self.bias, x.ndim - 1), state

    def _running(self, x: jax.Array, state: State, is_inference: bool) -> tuple[jax.Array, jax.Array, State]:
        assert self.ema_first_time_index is not None
        assert self.ema_state_index is not None
        running = state.get(self.ema_state_index)
        if is_inference:
            return *running, state
        is_first = state.get(self.ema_first_time_index)
        mean, var = (
            jax.lax.select(is_first, new, (1 - self.momentum) * new + self.momentum * old)
            for new, old in zip(self._measured(x), running, strict=True)
        )
        state = state.set(self.ema_first_time_index, jnp.array(False))
        return mean, var, state.set(self.ema_state_index, (mean, var))

    def _of_batch(self, x: jax.Array, state: State, is_inference: bool) -> tuple[jax.Array, jax.Array, State]:
        assert self.batch_counter is not None
        assert self.batch_state_index is not None
        count, running = state.get(self.batch_counter), state.get(self.batch_state_index)
        if is_inference:
            weight = jnp.where(count == 0, 1, 1 - self.momentum**count)  # what the batches so far weigh
            return running[0] / weight, running[1] / weight, state
        mean, var = self._measured(x)
        moved = tuple(
            old * self.momentum + new * (1 - self.momentum) for new, old in zip((mean, var), running, strict=True)
        )
        state = state.set(self.batch_counter, count + 1)
        return mean, var, state.set(self.batch_state_index, moved)  # type: ignore[arg-type]

    def _measured(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of each channel over space and the mapped axes."""

        def over_all(y: jax.Array) -> jax.Array:
            return jax.lax.pmean(jnp.mean(y, tuple(range(1, y.ndim))), self.axis_name)

        mean = over_all(x)
        centred = x - mean.reshape(-1, *[1] * (x.ndim - 1))
        return mean, jnp.maximum(0.0, over_all(centred * jnp.conj(centred)))
