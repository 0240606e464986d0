"""Convolutions, and transposed ones."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import nn
from aerogel.module import Module, field
from aerogel.nn._conv import convolved, padding_named
from aerogel.nn._init import default_dtype, uniform
from aerogel.nn._windows import Each, Pads, each_axis, pads_of

from .._errors import CompatError


class Conv(nn.Conv):
    """Equinox's `Conv`; it takes leading axes too. `padding_mode` may be in capitals, and is kept in small letters.

    Attributes:
        bias: [out_channels, 1, ...], or None.
    """

    kernel_size: tuple[int, ...] = field(static=True)
    use_bias: bool = field(static=True)

    def __init__(
        self,
        num_spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        dilation: Each = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "ZEROS",
        dtype: Any = None,
        *,
        key: jax.Array,
    ) -> None:
        super().__init__(
            *(num_spatial_dims, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, use_bias),
            padding_mode.lower(),  # type: ignore[arg-type]
            dtype=dtype,
            key=key,
        )
        self.kernel_size = self.weight.shape[2:]
        self.use_bias = use_bias
        if use_bias:
            self.bias = jnp.reshape(self.bias, (out_channels, *[1] * num_spatial_dims))  # type: ignore[arg-type]


class ConvTranspose(Module):
    """Equinox's `ConvTranspose`; it takes leading axes too.

    It is the transposed map of the `Conv` whose weight has the axes of channels swapped and is turned around in space;
    `aerogel.nn.ConvTranspose` keeps that layer's own weight, as PyTorch does.

    Attributes:
        weight: [out_channels, in_channels // groups, *kernel_size].
        bias: [out_channels, 1, ...], or None.
    """

    weight: jax.Array
    bias: jax.Array | None
    num_spatial_dims: int = field(static=True)
    in_channels: int = field(static=True)
    out_channels: int = field(static=True)
    kernel_size: tuple[int, ...] = field(static=True)
    stride: tuple[int, ...] = field(static=True)
    padding: str | tuple[tuple[int, int], ...] = field(static=True)
    output_padding: tuple[int, ...] = field(static=True)
    dilation: tuple[int, ...] = field(static=True)
    groups: int = field(static=True)
    use_bias: bool = field(static=True)
    padding_mode: str = field(static=True)

    def __init__(
        self,
        num_spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        output_padding: Each = 0,
        dilation: Each = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "ZEROS",
        dtype: Any = None,
        *,
        key: jax.Array,
    ) -> None:
        n, dtype = num_spatial_dims, default_dtype(dtype)
        self.kernel_size = each_axis(kernel_size, n, "kernel_size")
        self.stride = each_axis(stride, n, "stride")
        self.padding = padding_named(padding) if isinstance(padding, str) else pads_of(padding, n)
        self.output_padding = each_axis(output_padding, n, "output_padding", least=0)
        self.dilation = each_axis(dilation, n, "dilation")
        self.padding_mode = padding_mode.upper()
        self._check()
        of_weight, of_bias = jax.random.split(key)
        into = in_channels // groups
        draw = uniform(into * math.prod(self.kernel_size))
        self.weight = draw(of_weight, (out_channels, into, *self.kernel_size), dtype)
        self.bias = draw(of_bias, (out_channels, *[1] * n), dtype) if use_bias else None
        self.num_spatial_dims, self.groups, self.use_bias = n, groups, use_bias
        self.in_channels, self.out_channels = in_channels, out_channels

    def _check(self) -> None:
        if any(more >= stride for more, stride in zip(self.output_padding, self.stride, strict=True)):
            raise CompatError(
                what="what is added to the output is less than a step.",
                place="ConvTranspose, argument `output_padding`",
                got=str(self.output_padding),
                wanted=f"less than {self.stride}",
                to_fix="pass less, or a larger stride",
            )
        is_circular = self.padding_mode == "CIRCULAR" and self.padding in ("SAME", "SAME_LOWER")
        if self.padding_mode != "ZEROS" and not (is_circular and not any(self.output_padding)):
            raise CompatError(
                what="a transposed convolution pads with zeros, or around.",
                place="ConvTranspose, argument `padding_mode`",
                got=f"{self.padding_mode}, padding={self.padding}, output_padding={self.output_padding}",
                wanted="ZEROS; or CIRCULAR with padding SAME or SAME_LOWER and no output_padding",
                to_fix="pass padding='SAME' and output_padding=0, or leave padding_mode out",
            )

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        pads = self._pads()
        if self.padding_mode == "CIRCULAR":
            steps = np.asarray(self.stride)[:, None]
            around = [(0, 0)] * (x.ndim - self.num_spatial_dims) + (pads // steps).tolist()
            x, pads = jnp.pad(x, around, mode="wrap"), pads % steps
        out = convolved(
            x,
            self.weight,
            window_strides=(1,) * self.num_spatial_dims,
            padding=[(int(low), int(high)) for low, high in pads],
            lhs_dilation=self.stride,
            rhs_dilation=self.dilation,
            groups=self.groups,
        )
        return out if self.bias is None else out + self.bias

    def _pads(self) -> np.ndarray:
        """[num_spatial_dims, 2]: padding of the input between whose entries `stride - 1` zeros stand."""
        stride, more = np.asarray(self.stride), np.asarray(self.output_padding)
        reach = np.asarray(self.dilation) * (np.asarray(self.kernel_size) - 1)
        if self.padding == "VALID":
            pads = np.zeros((self.num_spatial_dims, 2), int)
        elif isinstance(self.padding, str):
            total = reach - stride + more + 1
            more, total = np.maximum(-total, 0), np.maximum(total, 0)
            low = (total + (self.padding == "SAME_LOWER")) // 2
            pads = np.stack([low, total - low], axis=1)
        else:
            pads = np.asarray(self.padding)
        return reach[:, None] - pads + np.stack([np.zeros_like(more), more], axis=1)
