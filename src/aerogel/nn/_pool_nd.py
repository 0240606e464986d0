"""Pooling by the number of axes of space.

Each class names the `__init__` that it inherits: type checkers write one for a `Module` that has none.
"""

from typing import ClassVar

import jax.numpy as jnp

from ._adaptive_pool import AdaptivePool
from ._pool import AvgPool, MaxPool
from ._windows import Each, Pads


class _MaxPoolOver(MaxPool):
    """`MaxPool` over as many axes of space as the class says."""

    over: ClassVar[int]

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        dilation: Each = 1,
    ) -> None:
        super().__init__(self.over, kernel_size, stride, padding, use_ceil, dilation)


class MaxPool1d(_MaxPoolOver):
    """`MaxPool` with 1 axis of space."""

    over = 1
    __init__ = _MaxPoolOver.__init__


class MaxPool2d(_MaxPoolOver):
    """`MaxPool` with 2 axes of space."""

    over = 2
    __init__ = _MaxPoolOver.__init__


class MaxPool3d(_MaxPoolOver):
    """`MaxPool` with 3 axes of space."""

    over = 3
    __init__ = _MaxPoolOver.__init__


class _AvgPoolOver(AvgPool):
    """`AvgPool` over as many axes of space as the class says."""

    over: ClassVar[int]

    def __init__(
        self,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(self.over, kernel_size, stride, padding, use_ceil, count_include_pad)


class AvgPool1d(_AvgPoolOver):
    """`AvgPool` with 1 axis of space."""

    over = 1
    __init__ = _AvgPoolOver.__init__


class AvgPool2d(_AvgPoolOver):
    """`AvgPool` with 2 axes of space."""

    over = 2
    __init__ = _AvgPoolOver.__init__


class AvgPool3d(_AvgPoolOver):
    """`AvgPool` with 3 axes of space."""

    over = 3
    __init__ = _AvgPoolOver.__init__


class _AdaptiveAvgPoolOver(AdaptivePool):
    """The mean of windows over as many axes of space as the class says."""

    over: ClassVar[int]

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, self.over, jnp.mean)


class AdaptiveAvgPool1d(_AdaptiveAvgPoolOver):
    """The mean of windows over 1 axis of space, chosen for the target size: see `AdaptivePool`."""

    over = 1
    __init__ = _AdaptiveAvgPoolOver.__init__


class AdaptiveAvgPool2d(_AdaptiveAvgPoolOver):
    """The mean of windows over 2 axes of space, chosen for the target size: see `AdaptivePool`."""

    over = 2
    __init__ = _AdaptiveAvgPoolOver.__init__


class AdaptiveAvgPool3d(_AdaptiveAvgPoolOver):
    """The mean of windows over 3 axes of space, chosen for the target size: see `AdaptivePool`."""

    over = 3
    __init__ = _AdaptiveAvgPoolOver.__init__


class _AdaptiveMaxPoolOver(AdaptivePool):
    """The largest entry of windows over as many axes of space as the class says."""

    over: ClassVar[int]

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, self.over, jnp.max)


class AdaptiveMaxPool1d(_AdaptiveMaxPoolOver):
    """The largest entry of windows over 1 axis of space, chosen for the target size: see `AdaptivePool`."""

    over = 1
    __init__ = _AdaptiveMaxPoolOver.__init__


class AdaptiveMaxPool2d(_AdaptiveMaxPoolOver):
    """The largest entry of windows over 2 axes of space, chosen for the target size: see `AdaptivePool`."""

    over = 2
    __init__ = _AdaptiveMaxPoolOver.__init__


class AdaptiveMaxPool3d(_AdaptiveMaxPoolOver):
    """The largest entry of windows over 3 axes of space, chosen for the target size: see `AdaptivePool`."""

    over = 3
    __init__ = _AdaptiveMaxPoolOver.__init__
