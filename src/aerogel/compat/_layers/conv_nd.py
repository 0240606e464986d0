"""Convolutions by the number of axes of space.

Each class names the `__init__` that it inherits: type checkers write one for a `Module` that has none.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax

from aerogel.nn._windows import Each, Pads

from .conv import Conv, ConvTranspose


class _ConvOver(Conv):
    """`Conv` over as many axes of space as the class says."""

    over: ClassVar[int]

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
        padding_mode: str = "ZEROS",
        dtype: Any = None,
        *,
        key: jax.Array,
    ) -> None:
        where: Sequence[Any] = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(self.over, *where, use_bias, padding_mode, dtype, key=key)


class Conv1d(_ConvOver):
    """`Conv` with 1 axis of space."""

    over = 1
    __init__ = _ConvOver.__init__


class Conv2d(_ConvOver):
    """`Conv` with 2 axes of space."""

    over = 2
    __init__ = _ConvOver.__init__


class Conv3d(_ConvOver):
    """`Conv` with 3 axes of space."""

    over = 3
    __init__ = _ConvOver.__init__


class _ConvTransposeOver(ConvTranspose):
    """`ConvTranspose` over as many axes of space as the class says; `output_padding` stands before `padding`."""

    over: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Each,
        stride: Each = 1,
        output_padding: Each = 0,
        padding: Pads = 0,
        dilation: Each = 1,
        groups: int = 1,
        use_bias: bool = True,
        padding_mode: str = "ZEROS",
        dtype: Any = None,
        *,
        key: jax.Array,
    ) -> None:
        where: Sequence[Any] = (in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation)
        super().__init__(self.over, *where, groups, use_bias, padding_mode, dtype, key=key)


class ConvTranspose1d(_ConvTransposeOver):
    """`ConvTranspose` with 1 axis of space."""

    over = 1
    __init__ = _ConvTransposeOver.__init__


class ConvTranspose2d(_ConvTransposeOver):
    """`ConvTranspose` with 2 axes of space."""

    over = 2
    __init__ = _ConvTransposeOver.__init__


class ConvTranspose3d(_ConvTransposeOver):
    """`ConvTranspose` with 3 axes of space."""

    over = 3
    __init__ = _ConvTransposeOver.__init__
