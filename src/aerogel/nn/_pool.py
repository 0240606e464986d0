"""Pooling: windows over space are reduced to one number each."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel._errors import UsageError
from aerogel.module import Module

from ._check import check_last_axes, check_windows
from ._half import is_half, unhalved
from ._ranks import aligned
from ._windows import Each, Pads, each_axis, pads_of


class Pool(Module):
    """A reduction of windows over the last axes, any other axes as they are.

    Args:
        init: what `operation` starts from, and what padding is made of.
        operation: of two arrays, associative and commutative: `jax.lax.max`, `jax.lax.add`.
        num_spatial_dims: the number of axes of space.
        kernel_size: of the window; one number, or one for each axis, as all that follow.
        stride: steps between windows; None for as many as the window is large, so that windows do not overlap.
        padding: before and after each axis; pairs for different ones.
        use_ceil: whether a last window that reaches past the end counts, if it starts before it.
        dilation: steps between the entries of a window.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.Pool(0.0, jax.lax.add, 1, 2)(jnp.arange(6.0)).tolist()
    [1.0, 5.0, 9.0]
    """

    init: float
    operation: Callable[[Any, Any], Any]
    num_spatial_dims: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    use_ceil: bool
    dilation: tuple[int, ...]

    def __init__(
        self,
        init: float,
        operation: Callable[[Any, Any], Any],
        num_spatial_dims: int,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        dilation: Each = 1,
    ) -> None:
        self.init = init
        self.operation = operation
        self.num_spatial_dims = num_spatial_dims
        self.kernel_size = each_axis(kernel_size, num_spatial_dims, "kernel_size")
        self.stride = self.kernel_size if stride is None else each_axis(stride, num_spatial_dims, "stride")
        self.padding = pads_of(padding, num_spatial_dims)
        self.use_ceil = use_ceil
        self.dilation = each_axis(dilation, num_spatial_dims, "dilation")
        # A window that lies in the padding as a whole would give `init`.
        if any(max(pads) >= each for pads, each in zip(self.padding, self._reach, strict=True)):
            raise UsageError(argument="padding", got=padding, wanted=f"less than the window, {self._reach}")

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        check_last_axes(self, x, *["space"] * self.num_spatial_dims)
        check_windows(self, x, self._reach, self.padding)
        x = jnp.asarray(x)
        lead = x.ndim - self.num_spatial_dims
        pads = [(low, high + more) for (low, high), more in zip(self.padding, self._extra(x.shape[lead:]), strict=True)]
        pads, start = [*[(0, 0)] * lead, *pads], _start(self.init, x.dtype)
        if set(self.dilation) != {1}:  # JAX has no gradient of `reduce_window` for these
            return self._of_slices(jnp.pad(x, pads, constant_values=start))
        window, stride = (*[1] * lead, *self.kernel_size), (*[1] * lead, *self.stride)
        return jax.lax.reduce_window(x, start, self.operation, window, stride, pads)

    @property
    def _reach(self) -> tuple[int, ...]:
        """From the first entry of a window to its last, along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    def _of_slices(self, x: jax.Array) -> jax.Array:
        """The same, of a padded array: entries of windows are slices with a step."""
        space = x.shape[x.ndim - self.num_spatial_dims :]
        rows = zip(space, self.kernel_size, self.stride, self.dilation, strict=True)
        steps = [(stride, dilation, size - dilation * (kernel - 1)) for size, kernel, stride, dilation in rows]
        entries = [
            x[(..., *(slice(d * i, d * i + size, stride) for i, (stride, d, size) in zip(index, steps, strict=True)))]
            for index in itertools.product(*map(range, self.kernel_size))
        ]
        return functools.reduce(self.operation, entries)

    def _extra(self, space: tuple[int, ...]) -> list[int]:
        """What `use_ceil` adds to the padding after each axis."""
        extra = []
        for size, reach, stride, (low, high) in zip(space, self._reach, self.stride, self.padding, strict=True):
            rest = size + low + high - reach
            last = -(-rest // stride) * stride  # where the last window starts, counted from the padding
            last -= stride if last >= size + low else 0  # not in the padding after the end
            extra.append(max(last - rest, 0) if self.use_ceil else 0)
        return extra


def _start(init: float, dtype: Any) -> np.ndarray:
    """What a reduction starts from, in a dtype: of integers, the least or largest one for an infinity."""
    if math.isinf(init) and jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(jnp.iinfo(dtype).min if init < 0 else jnp.iinfo(dtype).max, dtype)
    return np.asarray(init, dtype)


class MaxPool(Pool):
    """The largest entry of each window over the last axes.

    `MaxPool1d`, `MaxPool2d` and `MaxPool3d` are this with `num_spatial_dims` given.

    `num_spatial_dims`, `kernel_size`, `stride`, `padding`, `use_ceil` and `dilation` are as for `Pool`. Padding
    counts as -inf.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.MaxPool2d(2)(jnp.ones((4, 3, 8, 8))).shape
    (4, 3, 4, 4)
    """

    def __init__(
        self,
        num_spatial_dims: int,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        dilation: Each = 1,
    ) -> None:
        super().__init__(-math.inf, jax.lax.max, num_spatial_dims, kernel_size, stride, padding, use_ceil, dilation)


class AvgPool(Module):
    """The mean of each window over the last axes.

    `AvgPool1d`, `AvgPool2d` and `AvgPool3d` are this with `num_spatial_dims` given.

    Attributes:
        windows: the `Pool` that sums them.

    Args:
        count_include_pad: whether padding counts in the number of entries. What `use_ceil` adds never does.

    `num_spatial_dims`, `kernel_size`, `stride`, `padding` and `use_ceil` are as for `Pool`. Padding counts as zeros.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.nn.AvgPool1d(2)(jnp.arange(6.0)).tolist()
    [0.5, 2.5, 4.5]
    """

    windows: Pool
    count_include_pad: bool

    def __init__(
        self,
        num_spatial_dims: int,
        kernel_size: Each,
        stride: Each | None = None,
        padding: Pads = 0,
        use_ceil: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.windows = Pool(0.0, jax.lax.add, num_spatial_dims, kernel_size, stride, padding, use_ceil)
        self.count_include_pad = count_include_pad

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        dtype, x = jnp.result_type(x), unhalved(x)
        sums = self.windows(x)
        lead = sums.ndim - self.windows.num_spatial_dims
        counts: Any = 1
        for axis in range(self.windows.num_spatial_dims):
            along = self._counts(axis, jnp.shape(x)[lead + axis], sums.shape[lead + axis])
            along = along[:1] if (along == along[:1]).all() else along  # mostly one number: no array in the program
            counts = counts * along.reshape(-1, *[1] * (self.windows.num_spatial_dims - 1 - axis))
        means = sums / aligned(sums, jnp.asarray(counts, sums.dtype))
        return means.astype(dtype) if is_half(dtype) else means

    def _counts(self, axis: int, size: int, steps: int) -> np.ndarray:
        """The number of entries of each window along one axis."""
        low, high = self.windows.padding[axis]
        start = np.arange(steps) * self.windows.stride[axis] - low
        end = start + self.windows.kernel_size[axis]
        if self.count_include_pad:
            return np.minimum(end, size + high) - start
        return np.minimum(end, size) - np.maximum(start, 0)
