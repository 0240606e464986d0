"""Pooling by the number of axes of space."""

import jax.numpy as jnp

from ._adaptive_pool import AdaptivePool
from ._pool import AvgPool, MaxPool
from ._windows import Each, Pads


class MaxPool1d(MaxPool):
    """`MaxPool` with 1 axis of space."""

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        dilation: Each = 1,
    ) -> None:
        super().__init__(1, kernel_size, stride, padding, use_ceil, dilation)


class MaxPool2d(MaxPool):
    """`MaxPool` with 2 axes of space."""

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        dilation: Each = 1,
    ) -> None:
        super().__init__(2, kernel_size, stride, padding, use_ceil, dilation)


class MaxPool3d(MaxPool):
    """`MaxPool` with 3 axes of space."""

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        dilation: Each = 1,
    ) -> None:
        super().__init__(3, kernel_size, stride, padding, use_ceil, dilation)


class AvgPool1d(AvgPool):
    """`AvgPool` with 1 axis of space."""

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(1, kernel_size, stride, padding, use_ceil, count_include_pad)


class AvgPool2d(AvgPool):
    """`AvgPool` with 2 axes of space."""

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(2, kernel_size, stride, padding, use_ceil, count_include_pad)


class AvgPool3d(AvgPool):
    """`AvgPool` with 3 axes of space."""

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(3, kernel_size, stride, padding, use_ceil, count_include_pad)


class AdaptiveAvgPool1d(AdaptivePool):
    """The mean of windows over 1 axis of space, chosen for the target size: see `AdaptivePool`."""

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, 1, jnp.mean)


class AdaptiveAvgPool2d(AdaptivePool):
    """The mean of windows over 2 axes of space, chosen for the target size: see `AdaptivePool`."""

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, 2, jnp.mean)


class AdaptiveAvgPool3d(AdaptivePool):
    """The mean of windows over 3 axes of space, chosen for the target size: see `AdaptivePool`."""

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, 3, jnp.mean)


class AdaptiveMaxPool1d(AdaptivePool):
    """The largest entry of windows over 1 axis of space, chosen for the target size: see `AdaptivePool`."""

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, 1, jnp.max)


class AdaptiveMaxPool2d(AdaptivePool):
    """The largest entry of windows over 2 axes of space, chosen for the target size: see `AdaptivePool`."""

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, 2, jnp.max)


class AdaptiveMaxPool3d(AdaptivePool):
    """The largest entry of windows over 3 axes of space, chosen for the target size: see `AdaptivePool`."""

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, 3, jnp.max)
