"""Transposed convolutions."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, field

from ._adapter import Parameter, value_of
from ._check import check_channels
from ._conv import check_groups, convolved, padding_named, with_bias
from ._init import Initializer, default_dtype, drawn
from ._windows import Each, Pads, each_axis, pads_of


class ConvTranspose(Module):
    """The transposed map of a convolution: from [..., in_channels, *space] to [..., out_channels, *larger space].

    It maps what `Conv` with the same numbers gives back to the shape of what it takes; without bias, and with that
    layer's weight, it is its gradient. `ConvTranspose1d`, `ConvTranspose2d` and `ConvTranspose3d` are this with
    `num_spatial_dims` given.

    Attributes:
        weight: [in_channels, out_channels // groups, *kernel_size], as in PyTorch.
        bias: [out_channels], or None.

    Args:
        output_padding: is added to the size after each axis of the result, where the convolution would round it off.
        init: draws the weight, asked for a shape [*kernel_size, in_channels, out_channels // groups]; by default
            uniform in ±1 / sqrt(out_channels // groups * kernel size), as in PyTorch.

    `num_spatial_dims`, `in_channels`, `out_channels`, `kernel_size`, `stride`, `padding`, `dilation`, `groups`,
    `use_bias`, `dtype`, `bias_init` and `key` are as for `Conv`. Padding "same" makes space `stride` times larger.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.ConvTranspose2d(8, 3, kernel_size=2, stride=2, key=jax.random.key(0))
    >>> layer(jnp.ones((4, 8, 16, 16))).shape
    (4, 3, 32, 32)
    """

    weight: Parameter = field(axes=("in", "out", ...))
    bias: Parameter | None = field(axes=("out",))
    num_spatial_dims: int
    in_channels: int
    out_channels: int
    stride: tuple[int, ...]
    padding: str | tuple[tuple[int, int], ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def __init__(
        self,
        num_spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        output_padding: Each = 0,
        groups: int = 1,
        use_bias: bool = True,
        dilation: Each = 1,
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        check_groups(groups, in_channels, out_channels)
        kernel = each_axis(kernel_size, num_spatial_dims, "kernel_size")
        shape, dtype = (out_channels // groups, in_channels, *kernel), default_dtype(dtype)
        fan_in = math.prod((out_channels // groups, *kernel))
        of_weight, of_bias = jax.random.split(key)
        self.weight = jnp.swapaxes(drawn(init, of_weight, shape, dtype, fan_in=fan_in, features=2), 0, 1)
        self.bias = drawn(bias_init, of_bias, (out_channels,), dtype, fan_in=fan_in) if use_bias else None
        self.num_spatial_dims = num_spatial_dims
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.stride = each_axis(stride, num_spatial_dims, "stride")
        self.padding = padding_named(padding) if isinstance(padding, str) else pads_of(padding, num_spatial_dims)
        self.output_padding = each_axis(output_padding, num_spatial_dims, "output_padding", least=0)
        self.dilation = each_axis(dilation, num_spatial_dims, "dilation")
        self.groups = groups

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_channels(self, x, self.in_channels, self.num_spatial_dims)
        weight = value_of(self.weight)
        out = convolved(
            x,
            self._transposed(weight),
            window_strides=(1,) * self.num_spatial_dims,
            padding=self._pads(weight.shape[2:]),
            lhs_dilation=self.stride,
            rhs_dilation=self.dilation,
            groups=self.groups,
        )
        return with_bias(out, self.bias, self.num_spatial_dims)

    def _transposed(self, weight: jax.Array) -> jax.Array:
        """[in, out of a group, *kernel] -> [out, in of a group, *kernel back to front]."""
        into, out, *kernel = weight.shape
        grouped = weight.reshape(self.groups, into // self.groups, out, *kernel)
        swapped = jnp.swapaxes(grouped, 1, 2).reshape(self.groups * out, into // self.groups, *kernel)
        return jnp.flip(swapped, range(2, weight.ndim))

    def _pads(self, kernel: tuple[int, ...]) -> list[tuple[int, int]]:
        """Padding of the input between whose entries `stride - 1` zeros stand."""
        reach = [dilation * (size - 1) for size, dilation in zip(kernel, self.dilation, strict=True)]
        if self.padding == "VALID":
            pads = [(0, 0)] * len(kernel)
        elif isinstance(self.padding, str):
            extra = [r + 1 - stride for r, stride in zip(reach, self.stride, strict=True)]
            less = [e // 2 if self.padding == "SAME" else e - e // 2 for e in extra]
            pads = [(low, e - low) for low, e in zip(less, extra, strict=True)]
        else:
            pads = list(self.padding)
        rows = zip(reach, pads, self.output_padding, strict=True)
        return [(r - low, r - high + more) for r, (low, high), more in rows]
