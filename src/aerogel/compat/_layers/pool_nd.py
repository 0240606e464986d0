"""Pooling by the number of axes of space.

Each class names the `__init__` that it inherits: type checkers write one for a `Module` that has none.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from aerogel.nn._windows import Each

from .pool import AdaptivePool, Pool


class _MaxPool(Pool):
    """The largest entry of each window, over as many axes of space as the class says."""

    over: ClassVar[int]

    def __init__(self, kernel_size: Each, stride: Each = 1, padding: Any = 0, use_ceil: bool = False) -> None:
        super().__init__(-math.inf, jax.lax.max, self.over, kernel_size, stride, padding, use_ceil)


class MaxPool1d(_MaxPool):
    """The largest entry of windows over 1 axis of space."""

    over = 1
    __init__ = _MaxPool.__init__


class MaxPool2d(_MaxPool):
    """The largest entry of windows over 2 axes of space."""

    over = 2
    __init__ = _MaxPool.__init__


class MaxPool3d(_MaxPool):
    """The largest entry of windows over 3 axes of space."""

    over = 3
    __init__ = _MaxPool.__init__


class _AvgPool(Pool):
    """The sum of each window through its size, padding counted as zeros, over as many axes as the class says."""

    over: ClassVar[int]

    def __init__(self, kernel_size: Each, stride: Each = 1, padding: Any = 0, use_ceil: bool = False) -> None:
        super().__init__(0, jax.lax.add, self.over, kernel_size, stride, padding, use_ceil)

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        return super().__call__(x) / math.prod(self.kernel_size)


class AvgPool1d(_AvgPool):
    """The mean of windows over 1 axis of space."""

    over = 1
    __init__ = _AvgPool.__init__


class AvgPool2d(_AvgPool):
    """The mean of windows over 2 axes of space."""

    over = 2
    __init__ = _AvgPool.__init__


class AvgPool3d(_AvgPool):
    """The mean of windows over 3 axes of space."""

    over = 3
    __init__ = _AvgPool.__init__


class _AdaptiveAvgPool(AdaptivePool):
    """The mean of windows over as many axes of space as the class says."""

    over: ClassVar[int]

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, self.over, jnp.mean)


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The mean of windows over 1 axis of space, chosen for the target size."""

    over = 1
    __init__ = _AdaptiveAvgPool.__init__


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The mean of windows over 2 axes of space, chosen for the target size."""

    over = 2
    __init__ = _AdaptiveAvgPool.__init__


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The mean of windows over 3 axes of space, chosen for the target size."""

    over = 3
    __init__ = _AdaptiveAvgPool.__init__


class _AdaptiveMaxPool(AdaptivePool):
    """The largest entry of windows over as many axes of space as the class says."""

    over: ClassVar[int]

    def __init__(self, target_shape: Each) -> None:
        super().__init__(target_shape, self.over, jnp.max)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest entry of windows over 1 axis of space, chosen for the target size."""

    over = 1
    __init__ = _AdaptiveMaxPool.__init__


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest entry of windows over 2 axes of space, chosen for the target size."""

    over = 2
    __init__ = _AdaptiveMaxPool.__init__


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest entry of windows over 3 axes of space, chosen for the target size."""

    over = 3
    __init__ = _AdaptiveMaxPool.__init__
