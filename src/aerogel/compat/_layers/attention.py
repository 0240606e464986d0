"""Multi-head attention."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module, field
from aerogel.nn._attention import attention_weights, weighted_values

from .._errors import CompatError
from .dropout import Dropout, chosen
from .linear import Linear


class MultiheadAttention(Module):
    """Equinox's `MultiheadAttention` of one example: query, keys and values are [time, size].

    `aerogel.nn.MultiheadAttention` takes leading axes, and has grouped heads, a causal mask, rotary positions, a cache.
    """

    query_proj: Linear
    key_proj: Linear
    value_proj: Linear
    output_proj: Linear
    dropout: Dropout
    num_heads: int = field(static=True)
    query_size: int = field(static=True)
    key_size: int = field(static=True)
    value_size: int = field(static=True)
    output_size: int = field(static=True)
    qk_size: int = field(static=True)
    vo_size: int = field(static=True)
    use_query_bias: bool = field(static=True)
    use_key_bias: bool = field(static=True)
    use_value_bias: bool = field(static=True)
    use_output_bias: bool = field(static=True)

    def __init__(
        self,
        num_heads: int,
        query_size: int,
        key_size: int | None = None,
        value_size: int | None = None,
        output_size: int | None = None,
        qk_size: int | None = None,
        vo_size: int | None = None,
        use_query_bias: bool = False,
        use_key_bias: bool = False,
        use_value_bias: bool = False,
        use_output_bias: bool = False,
        dropout_p: float = 0.0,
        inference: bool = False,
        dtype: Any = None,
        *,
        key: jax.Array,
    ) -> None:
        self.num_heads, self.query_size = num_heads, query_size
        self.key_size = query_size if key_size is None else key_size
        self.value_size = query_size if value_size is None else value_size
        self.output_size = query_size if output_size is None else output_size
        self.qk_size = query_size // num_heads if qk_size is None else qk_size
        self.vo_size = query_size // num_heads if vo_size is None else vo_size
        self.use_query_bias, self.use_key_bias = use_query_bias, use_key_bias
        self.use_value_bias, self.use_output_bias = use_value_bias, use_output_bias
        of_query, of_key, of_value, of_output = jax.random.split(key, 4)
        compared, taken = num_heads * self.qk_size, num_heads * self.vo_size
        self.query_proj = Linear(query_size, compared, use_query_bias, dtype, key=of_query)
        self.key_proj = Linear(self.key_size, compared, use_key_bias, dtype, key=of_key)
        self.value_proj = Linear(self.value_size, taken, use_value_bias, dtype, key=of_value)
        self.output_proj = Linear(taken, self.output_size, use_output_bias, dtype, key=of_output)
        self.dropout = Dropout(dropout_p, inference)

    def __call__(
        self,
        query: jax.Array,
        key_: jax.Array,
        value: jax.Array,
        mask: jax.Array | None = None,
        *,
        key: jax.Array | None = None,
        inference: bool | None = None,
        deterministic: bool | None = None,
        process_heads: Callable[..., tuple[jax.Array, jax.Array, jax.Array]] | None = None,
    ) -> jax.Array:
        """The result for a query, [time, output_size].

        Args:
            query: what asks, [time, query_size].
            key_: what is compared with, [keys, key_size].
            value: what is taken, [keys, value_size].
            mask: [time, keys] or [num_heads, time, keys]: True where a query sees a key.
            key: for dropout.
            inference: stands for the attribute of dropout, where it is given.
            deterministic: the same; deprecated.
            process_heads: from queries, keys and values, each [time or keys, num_heads, size], to such arrays.
        """
        inference = chosen(inference, deterministic, "MultiheadAttention()")
        heads = [
            projection(x).reshape(x.shape[0], self.num_heads, -1)
            for projection, x in ((self.query_proj, query), (self.key_proj, key_), (self.value_proj, value))
        ]
        shapes = [each.shape for each in heads]
        heads = heads if process_heads is None else process_heads(*heads)
        if [each.shape for each in heads] != shapes or shapes[1][0] != shapes[2][0]:
            raise CompatError(
                what="`process_heads` keeps shapes, and there are as many values as keys.",
                place="MultiheadAttention()",
                got=", ".join(str(each.shape) for each in heads),
                wanted=f"{shapes[0]}, {shapes[1]}, {(shapes[1][0], *shapes[2][1:])}",
                to_fix="return arrays of the shapes that it is given; pass keys and values of one length",
            )
        weights = attention_weights(heads[0], heads[1], mask)
        keys = None if key is None else jax.random.split(key, self.num_heads)
        weights = jax.vmap(lambda one, key: self.dropout(one, key=key, inference=inference))(weights, keys)
        return self.output_proj(jnp.reshape(weighted_values(weights, heads[2]), (query.shape[0], -1)))
