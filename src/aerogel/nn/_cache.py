"""Keys and values of earlier calls, for decoding."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, Variable

from ._check import shown
from ._errors import InputError
from ._init import default_dtype
from ._position import position_of


class KVCache(Module):
    """Room for the keys and values of `max_length` places, filled from the first on by calls through `ag.stateful`.

    `MultiheadAttention.with_cache` and `with_cache` make them.

    Attributes:
        keys: variable of [..., max_length, heads, qk_size].
        values: variable of [..., max_length, heads, vo_size].
        length: variable of [], the number of places that are filled. Beyond `max_length` results are NaN: nothing
            that depends on a number can be refused while tracing.

    Args:
        shape: [..., max_length, heads].
        qk_size: of a key, in one head.
        vo_size: of a value, in one head.
        dtype: of keys and values.

    >>> import aerogel as ag
    >>> ag.nn.KVCache((8, 100, 2), 4, 4)
    KVCache(
      keys=Variable(value=f32[8,100,2,4]),
      values=Variable(value=f32[8,100,2,4]),
      length=Variable(value=i32[]),
    )
    """

    keys: Variable
    values: Variable
    length: Variable

    def __init__(self, shape: Sequence[int], qk_size: int, vo_size: int, *, dtype: Any = None) -> None:
        self.keys = Variable(jnp.zeros((*shape, qk_size), default_dtype(dtype)))
        self.values = Variable(jnp.zeros((*shape, vo_size), default_dtype(dtype)))
        self.length = Variable(0)

    def extended(self, keys: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        """All keys and values, with new ones [..., time, heads, size] behind those that were there."""
        start = self.length.get()
        whole = []
        for variable, new in ((self.keys, keys), (self.values, values)):
            old = variable.get()
            batch, fits = old.shape[:-3], new.shape[-3] <= old.shape[-3]
            if new.shape[:-3] != batch or new.shape[-2:] != old.shape[-2:] or not fits:
                raise InputError(
                    what="the cache has room for other shapes.",
                    place=position_of(self),
                    got=shown(new),
                    wanted=shown(old),
                    to_fix="make one for this batch and length: nn.with_cache(model, max_length, batch_shape)",
                )
            # Else they would take the last places, whatever stands there. `stateful` traces: no number is known here.
            has_room = start + new.shape[-3] <= old.shape[-3]
            new = jnp.where(has_room, new, jnp.asarray(jnp.nan, new.dtype)).astype(old.dtype)
            whole.append(jax.lax.dynamic_update_slice(old, new, (*[0] * len(batch), start, 0, 0)))
            variable.set(whole[-1])
        self.length.set(start + keys.shape[-3])
        return whole[0], whole[1]
