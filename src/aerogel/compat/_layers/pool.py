"""Pooling: windows over space are reduced to one number each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import nn
from aerogel.module import Module, field
from aerogel.nn._windows import Each, each_axis


class Pool(nn.Pool):
    """Equinox's `Pool`, whose windows overlap by default: the stride is 1. It takes leading axes too.

    With `use_ceil`, a last window counts wherever there is something left for it, also where it lies in the padding.
    """

    def __init__(
        self,
        init: Any,
        operation: Callable[[Any, Any], Any],
        num_spatial_dims: int,
        kernel_size: Each,
        stride: Each = 1,
        padding: Any = 0,
        use_ceil: bool = False,
    ) -> None:
        super().__init__(init, operation, num_spatial_dims, kernel_size, stride, padding, use_ceil)

    def _extra(self, space: tuple[int, ...]) -> list[int]:
        rows = zip(space, self.kernel_size, self.stride, self.padding, strict=True)
        rests = [(size + low + high - kernel) % stride for size, kernel, stride, (low, high) in rows]
        return [stride if rest and self.use_ceil else 0 for rest, stride in zip(rests, self.stride, strict=True)]


class AdaptivePool(Module):
    """Equinox's `AdaptivePool`: windows do not overlap, and the first ones are one longer where they cannot be equal.

    `operation` is called with a vector. It takes leading axes too. `aerogel.nn.AdaptivePool` has PyTorch's windows.
    """

    target_shape: tuple[int, ...] = field(static=True)
    operation: Callable[..., Any]

    def __init__(self, target_shape: Each, num_spatial_dims: int, operation: Callable[..., Any]) -> None:
        self.target_shape = each_axis(target_shape, num_spatial_dims, "target_shape", least=0)
        self.operation = operation

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        """The result for `x`; `key` is not used."""
        for axis, target in zip(range(-len(self.target_shape), 0), self.target_shape, strict=True):
            x = self._along(x, axis, target)
        return x

    def _along(self, x: jax.Array, axis: int, target: int) -> jax.Array:
        x = jnp.moveaxis(x, axis, -1)
        size, longer = divmod(x.shape[-1], target)
        parts = jnp.split(x, [longer * (size + 1)], axis=-1)
        reduced = [
            jax.vmap(self.operation)(part.reshape(-1, width)).reshape(*x.shape[:-1], count)
            for part, count, width in zip(parts, (longer, target - longer), (size + 1, size), strict=True)
            if count
        ]
        return jnp.moveaxis(jnp.concatenate(reduced, axis=-1), -1, axis)
