"""Normalisation by the statistics of a batch, and of all batches seen in inference."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, Variable, field

from ._adapter import Parameter
from ._check import check_channels, shown
from ._errors import InputError
from ._init import default_dtype
from ._layer_norm import narrowed, scaled, widened
from ._position import position_of
from ._ranks import aligned


class BatchNorm(Module):
    """Each channel with mean 0 and variance 1 over batch and space, times `weight` plus `bias`.

    Inputs are [..., channels, *space]; statistics are taken over all axes but that of the channels, and over the axes
    of `axis_name`. In training they also move the running ones, which are `ag.Variable`s: call the model by
    `ag.stateful`. In inference the running ones normalise.

    Attributes:
        weight, bias: [channels], or None.
        running_mean, running_var: variables of [channels]; None without `track_running_stats`.
        batches: variable of [], the number of batches that the running ones are of; None where `momentum` is given.

    Args:
        channels: the number of channels.
        axis_name: of `jax.vmap`, or several: mapped axes to take statistics over too.
        eps: is added to the variance.
        momentum: the weight of the new statistics in the running ones; None for their mean over all batches.
        channelwise_affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics; else the batch's are used in inference too.
        inference: whether the running ones are used. `ag.inference(model)` sets this everywhere.
        num_spatial_dims: the number of axes behind the channels: 2 for images, 0 for vectors.
        dtype: of the parameters and statistics.

    Raises:
        InputError: called in training with one value per channel, which has no variance, or where no axis of
            `axis_name` is mapped.
        StateError: called in training outside of `ag.stateful`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> norm = ag.nn.BatchNorm(3)
    >>> out, norm = ag.stateful(ag.nn.BatchNorm.__call__)(norm, jnp.arange(12.0).reshape(4, 3))
    >>> out.mean(0).tolist(), norm.running_mean.value.round(3).tolist()
    ([0.0, 0.0, 0.0], [0.45000001788139343, 0.550000011920929, 0.6500000357627869])
    """

    weight: Parameter | None = field(axes=("channels",))
    bias: Parameter | None = field(axes=("channels",))
    running_mean: Variable | None
    running_var: Variable | None
    batches: Variable | None
    channels: int
    axis_name: tuple[Hashable, ...]
    eps: float
    momentum: float | None
    inference: bool
    num_spatial_dims: int

    def __init__(
        self,
        channels: int,
        axis_name: Hashable | Sequence[Hashable] | None = None,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        channelwise_affine: bool = True,
        track_running_stats: bool = True,
        inference: bool = False,
        *,
        num_spatial_dims: int = 0,
        dtype: Any = None,
    ) -> None:
        if momentum is not None and not 0 <= momentum <= 1:
            raise UsageError(argument="momentum", got=momentum, wanted="a number from 0 to 1", function="BatchNorm")
        dtype = default_dtype(dtype)
        self.weight = jnp.ones(channels, dtype) if channelwise_affine else None
        self.bias = jnp.zeros(channels, dtype) if channelwise_affine else None
        self.running_mean = Variable(jnp.zeros(channels, dtype)) if track_running_stats else None
        self.running_var = Variable(jnp.ones(channels, dtype)) if track_running_stats else None
        self.batches = Variable(0) if track_running_stats and momentum is None else None
        self.channels = channels
        names = () if axis_name is None else axis_name
        self.axis_name = tuple(names) if isinstance(names, tuple | list) else (names,)
        self.eps = eps
        self.momentum = momentum
        self.inference = inference
        self.num_spatial_dims = num_spatial_dims

    def __call__(self, x: Any, *, key: jax.Array | None = None, inference: bool | None = None) -> jax.Array:
        """The result for `x`; `inference` stands for the attribute, where it is given. `key` is not used."""
        check_channels(self, x, self.channels, self.num_spatial_dims)
        wide = widened(x)
        if (self.inference if inference is None else inference) and self.running_mean is not None:
            mean, var = widened(self.running_mean.get()), widened(self.running_var.get())  # type: ignore[union-attr]
        else:
            mean, var = self._of_batch(wide)
        mean, scale = (aligned(wide, each, self.num_spatial_dims) for each in (mean, jax.lax.rsqrt(var + self.eps)))
        out = (wide - mean) * scale
        return narrowed(scaled(out, self.weight, self.bias, self.num_spatial_dims), x)

    def _of_batch(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of a batch; they move the running ones."""
        at = x.ndim - 1 - self.num_spatial_dims
        axes = tuple(axis for axis in range(x.ndim) if axis != at)
        count = math.prod(x.shape[axis] for axis in axes) * self._mapped()
        if count == 1:
            raise InputError(
                what="in training, statistics need more than one value per channel.",
                place=position_of(self),
                got=shown(x),
                wanted="a batch, or an axis_name of a vmap",
                to_fix="call it with a leading batch axis; give the vmap's axis_name; or ag.inference(model)",
            )
        mean = _over(jnp.mean(x, axes), self.axis_name)
        centred = x - aligned(x, mean, self.num_spatial_dims)
        var = _over(jnp.mean(centred * centred, axes), self.axis_name)
        if count and self.running_mean is not None and self.running_var is not None:
            # As in PyTorch, the running variance is the unbiased one, and the batch is normalised with the biased one.
            of_new = self._weight_of_new()
            _move(self.running_mean, mean, of_new)
            _move(self.running_var, var * (count / (count - 1)), of_new)
        return mean, var

    def _mapped(self) -> int:
        """How often it is called, along mapped axes."""
        try:
            return jax.lax.axis_size(self.axis_name) if self.axis_name else 1
        except NameError as error:  # JAX's, which does not say which layer asked
            name = self.axis_name[0] if len(self.axis_name) == 1 else self.axis_name
            raise InputError(
                what="statistics are to be taken over an axis that is not mapped here.",
                place=position_of(self),
                got=str(error),
                wanted=f"a call inside of a vmap with axis_name={name!r}",
                to_fix=f"jax.vmap(model, axis_name={name!r})(x); a batch is taken whole without axis_name",
            ) from None

    def _weight_of_new(self) -> Any:
        if self.momentum is not None:
            return self.momentum
        assert self.batches is not None, "without a momentum batches are counted"
        self.batches.set(self.batches.get() + 1)
        return 1 / self.batches.get()


def _move(running: Variable, new: jax.Array, of_new: Any) -> None:
    old = running.get()
    running.set((old + of_new * (jax.lax.stop_gradient(new) - old)).astype(old.dtype))


def _over(mean: jax.Array, axis_name: tuple[Hashable, ...]) -> jax.Array:
    return jax.lax.pmean(mean, axis_name) if axis_name else mean
