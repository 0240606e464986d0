"""Pooling to a size that is given, by windows that are chosen for it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel.module import Module

from ._check import check_last_axes, check_windows
from ._half import is_half, unhalved
from ._windows import Each, each_axis


class AdaptivePool(Module):
    """Windows over the last axes, chosen so that the result has the target size, are reduced to one number each.

    Window i of n goes from `floor(i * size / n)` to `ceil((i + 1) * size / n)`, as in PyTorch: where `size` is no
    multiple of n, windows overlap. `AdaptiveAvgPool1d`, `AdaptiveMaxPool2d` and so on are this with two arguments set.

    Args:
        target_shape: sizes of the last axes of the result; one number for all.
        num_spatial_dims: the number of axes of space.
        operation: reduces one axis, as `jnp.mean` and `jnp.max`: called with `axis` and `where`, and `initial` where
            that is needed. Axes are reduced one after the other.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.AdaptivePool(3, 1, jnp.mean)(jnp.arange(5.0)).tolist()
    [0.5, 2.0, 3.5]
    """

    target_shape: tuple[int, ...]
    num_spatial_dims: int
    operation: Callable[..., Any]

    def __init__(self, target_shape: Each, num_spatial_dims: int, operation: Callable[..., Any]) -> None:
        self.target_shape = each_axis(target_shape, num_spatial_dims, "target_shape", least=0)
        self.num_spatial_dims = num_spatial_dims
        self.operation = operation

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_last_axes(self, x, *["space"] * self.num_spatial_dims)
        check_windows(self, x, [1] * self.num_spatial_dims, [(0, 0)] * self.num_spatial_dims)
        dtype, x = jnp.result_type(x), unhalved(jnp.asarray(x))
        for axis, target in zip(range(x.ndim - self.num_spatial_dims, x.ndim), self.target_shape, strict=True):
            x = self._along(x, axis, target)
        return x.astype(dtype) if is_half(dtype) and x.dtype == jnp.float32 else x

    def _along(self, x: jax.Array, axis: int, target: int) -> jax.Array:
        size = x.shape[axis]
        if target and size % target == 0:
            parts = x.reshape(*x.shape[:axis], target, size // target, *x.shape[axis + 1 :])
            return self.operation(parts, axis=axis + 1)
        steps = np.arange(target)
        start, end = steps * size // target, -(-(steps + 1) * size // target)
        index = start[:, None] + np.arange((end - start).max(initial=0))
        # The last entry stands again where a window is shorter than the longest.
        parts = jnp.take(x, np.minimum(index, end[:, None] - 1).ravel(), axis, mode="clip")
        parts = parts.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        counts = (index < end[:, None]).reshape(*index.shape, *[1] * (x.ndim - 1 - axis))
        initial = {"initial": -jnp.inf} if self.operation is jnp.max else {}
        return self.operation(parts, axis=axis + 1, where=counts, **initial)
