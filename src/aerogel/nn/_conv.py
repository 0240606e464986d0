"""Convolutions."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, field

from ._adapter import Parameter, value_of
from ._check import check_channels, check_windows
from ._half import biased
from ._init import Initializer, default_dtype, drawn
from ._windows import Each, Pads, each_axis, pads_of

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]
_JNP_MODE = {"zeros": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}


class Conv(Module):
    """Convolution over the last axes: from [..., in_channels, *space] to [..., out_channels, *space].

    `Conv1d`, `Conv2d` and `Conv3d` are this with `num_spatial_dims` given. With `groups=in_channels` it is depthwise.

    Attributes:
        weight: [out_channels, in_channels // groups, *kernel_size].
        bias: [out_channels], or None.

    Args:
        num_spatial_dims: the number of axes of space.
        in_channels: channels of the input.
        out_channels: channels of the result.
        kernel_size: of the window; one number, or one for each axis, as all that follow.
        stride: steps between windows.
        padding: before and after each axis; pairs for different ones; or "valid" for none and "same" for as much as
            keeps the size at stride 1.
        dilation: steps between the entries of a window.
        groups: channels are cut into as many groups, each of which sees its own.
        use_bias: whether there is a bias.
        padding_mode: what padding is made of: "zeros", or the input "circular", "reflect" or "replicate".
        init: draws the weight, asked for a shape [*kernel_size, in_channels // groups, out_channels]; by default
            uniform in ±1 / sqrt(in_channels // groups * kernel size), as in PyTorch.

    `dtype`, `bias_init` and `key` are as for `Linear`.

    Raises:
        UsageError: numbers that do not fit each other.
        InputError: called with another number of channels.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> layer = ag.nn.Conv2d(3, 8, kernel_size=3, padding="same", key=jax.random.key(0))
    >>> layer(jnp.ones((4, 3, 16, 16))).shape
    (4, 8, 16, 16)
    """

    weight: Parameter = field(axes=("out", "in", ...))
    bias: Parameter | None = field(axes=("out",))
    num_spatial_dims: int
    in_channels: int
    out_channels: int
    stride: tuple[int, ...]
    padding: str | tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: PaddingMode

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
        padding_mode: PaddingMode = "zeros",
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        check_groups(groups, in_channels, out_channels)
        if padding_mode not in _JNP_MODE:
            raise UsageError(argument="padding_mode", got=padding_mode, wanted=list(_JNP_MODE), function="Conv")
        kernel = each_axis(kernel_size, num_spatial_dims, "kernel_size")
        shape, dtype = (out_channels, in_channels // groups, *kernel), default_dtype(dtype)
        fan_in = math.prod(shape[1:])
        of_weight, of_bias = jax.random.split(key)
        self.weight = drawn(init, of_weight, shape, dtype, fan_in=fan_in, features=2)
        self.bias = drawn(bias_init, of_bias, (out_channels,), dtype, fan_in=fan_in) if use_bias else None
        self.num_spatial_dims = num_spatial_dims
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.stride = each_axis(stride, num_spatial_dims, "stride")
        self.padding = padding_named(padding) if isinstance(padding, str) else pads_of(padding, num_spatial_dims)
        self.dilation = each_axis(dilation, num_spatial_dims, "dilation")
        self.groups = groups
        self.padding_mode = padding_mode

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_channels(self, x, self.in_channels, self.num_spatial_dims)
        weight = value_of(self.weight)
        pads = self._pads(jnp.shape(x)[-self.num_spatial_dims :], weight.shape[2:])
        reach = [1 + dilation * (size - 1) for size, dilation in zip(weight.shape[2:], self.dilation, strict=True)]
        check_windows(self, x, reach, pads)
        if self.padding_mode != "zeros":
            before = [(0, 0)] * (jnp.ndim(x) - self.num_spatial_dims)
            x = jnp.pad(x, [*before, *pads], mode=_JNP_MODE[self.padding_mode])
            pads = ((0, 0),) * self.num_spatial_dims
        out = convolved(
            x, weight, window_strides=self.stride, padding=pads, rhs_dilation=self.dilation, groups=self.groups
        )
        return with_bias(out, self.bias, self.num_spatial_dims)

    def _pads(self, space: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        if not isinstance(self.padding, str):
            return self.padding
        window = [1 + dilation * (size - 1) for size, dilation in zip(kernel, self.dilation, strict=True)]
        return tuple(jax.lax.padtype_to_pads(space, window, self.stride, self.padding))


class SeparableConv(Module):
    """A depthwise convolution, then one of size 1 that mixes channels.

    Attributes:
        depthwise, pointwise: the two `Conv`s.

    Args:
        multiplier: channels between the two for each channel of the input.

    `num_spatial_dims`, `in_channels`, `out_channels`, `kernel_size`, `stride`, `padding`, `dilation`, `use_bias`,
    `padding_mode`, `dtype`, `init`, `bias_init` and `key` are as for `Conv`; biases are the second one's.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.SeparableConv(1, 4, 8, 3, key=jax.random.key(0))(jnp.ones((4, 10))).shape
    (8, 8)
    """

    depthwise: Conv
    pointwise: Conv

    def __init__(
        self,
        num_spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        dilation: Each = 1,
        multiplier: int = 1,
        use_bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        *,
        dtype: Any = None,
        init: Initializer | None = None,
        bias_init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        one, two = jax.random.split(key)
        between = in_channels * multiplier
        where = (num_spatial_dims, in_channels, between, kernel_size, stride, padding, dilation, in_channels)
        self.depthwise = Conv(*where, False, padding_mode, dtype=dtype, init=init, key=one)
        self.pointwise = Conv(
            *(num_spatial_dims, between, out_channels, 1),
            use_bias=use_bias,
            dtype=dtype,
            init=init,
            bias_init=bias_init,
            key=two,
        )

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        return self.pointwise(self.depthwise(x))


def check_groups(groups: int, in_channels: int, out_channels: int) -> None:
    """Nothing, if both numbers of channels are multiples of `groups`.

    Raises:
        UsageError: one is not.
    """
    if groups < 1 or in_channels % groups or out_channels % groups:
        wanted = f"a divisor of in_channels={in_channels} and out_channels={out_channels}"
        raise UsageError(argument="groups", got=groups, wanted=wanted)


def padding_named(padding: str) -> str:
    """The name in upper case: SAME, SAME_LOWER or VALID.

    Raises:
        UsageError: it is something else.
    """
    name = padding.upper()
    if name not in ("SAME", "SAME_LOWER", "VALID"):
        raise UsageError(argument="padding", got=padding, wanted=["same", "valid", "same_lower"])
    return name


def convolved(x: Any, weight: Any, *, groups: int, **options: Any) -> jax.Array:
    """The convolution of [..., channels, *space], any leading axes, with [out, in, *kernel]."""
    spatial = weight.ndim - 2
    lead = jnp.shape(x)[: jnp.ndim(x) - 1 - spatial]
    batch = jnp.reshape(x, (math.prod(lead), *jnp.shape(x)[len(lead) :]))
    batch, weight = promoted(batch, weight)
    out = jax.lax.conv_general_dilated(batch, weight, feature_group_count=groups, **options)
    return out.reshape(*lead, *out.shape[1:])


def promoted(*arrays: Any) -> tuple[jax.Array, ...]:
    """The arrays in one dtype, as `jax.numpy` would compute with them: `lax` takes no mixture."""
    dtype = jnp.result_type(*arrays)
    return tuple(jnp.asarray(each, dtype) for each in arrays)


def with_bias(x: jax.Array, bias: Any, num_spatial_dims: int) -> jax.Array:
    """The sum of [..., channels, *space] and [channels], or [channels, 1, ...], as Equinox has it."""
    return x if bias is None else biased(x, value_of(bias).reshape(-1), num_spatial_dims)
