"""Convolutions by the number of axes of space."""

from typing import Unpack

from ._conv import Conv, PaddingMode
from ._conv_transpose import ConvTranspose
from ._init import Options
from ._windows import Each, Pads


class Conv1d(Conv):
    """`Conv` with 1 axis of space."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        dilation: Each = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        **options: Unpack[Options],
    ) -> None:
        where = (1, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, use_bias, padding_mode)
        super().__init__(*where, **options)


class Conv2d(Conv):
    """`Conv` with 2 axes of space."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        dilation: Each = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        **options: Unpack[Options],
    ) -> None:
        where = (2, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, use_bias, padding_mode)
        super().__init__(*where, **options)


class Conv3d(Conv):
    """`Conv` with 3 axes of space."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        dilation: Each = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        **options: Unpack[Options],
    ) -> None:
        where = (3, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, use_bias, padding_mode)
        super().__init__(*where, **options)


class ConvTranspose1d(ConvTranspose):
    """`ConvTranspose` with 1 axis of space."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        output_padding: Each = 0,
        groups: int = 1,
        use_bias: bool = True,
        dilation: Each = 1,
        **options: Unpack[Options],
    ) -> None:
        where = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, use_bias, dilation)
        super().__init__(1, *where, **options)


class ConvTranspose2d(ConvTranspose):
    """`ConvTranspose` with 2 axes of space."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        output_padding: Each = 0,
        groups: int = 1,
        use_bias: bool = True,
        dilation: Each = 1,
        **options: Unpack[Options],
    ) -> None:
        where = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, use_bias, dilation)
        super().__init__(2, *where, **options)


class ConvTranspose3d(ConvTranspose):
    """`ConvTranspose` with 3 axes of space."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Pads = 0,
        output_padding: Each = 0,
        groups: int = 1,
        use_bias: bool = True,
        dilation: Each = 1,
        **options: Unpack[Options],
    ) -> None:
        where = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, use_bias, dilation)
        super().__init__(3, *where, **options)
