"""Multi-head attention."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from aerogel._errors import UsageError
from aerogel.module import Module, at

from ._cache import KVCache
from ._check import check_broadcasts, check_last_axes, shown
from ._dropout import Dropout
from ._errors import InputError
from ._init import Initializer
from ._layer_norm import widened
from ._linear import Linear
from ._position import position_of
from ._positions import RotaryPositionalEmbedding
from ._ranks import aligned


class MultiheadAttention(Module):
    """Attention of a query to keys, for several heads: from [..., time, query_size] to [..., time, output_size].

    Attributes:
        query_proj, key_proj, value_proj, output_proj: `Linear`s; heads lie one after the other in their features.
        cache: what earlier calls gave, or None: see `with_cache`.

    Args:
        num_heads: the number of heads of the query.
        query_size: size of the query.
        key_size: size of keys, by default that of the query.
        value_size: size of values, by default that of the query.
        output_size: size of the result, by default that of the query.
        qk_size: of one head, for comparing; by default `query_size // num_heads`.
        vo_size: of one head, of what is taken; by default the same.
        use_query_bias: whether the projection of the query has a bias.
        use_key_bias: whether that of keys has one.
        use_value_bias: whether that of values has one.
        use_output_bias: whether that of the result has one.
        dropout_p: of attention weights, in training.
        inference: whether there is no dropout.
        num_kv_heads: the number of heads of keys and values, a divisor of `num_heads`: fewer for grouped-query
            attention, 1 for multi-query attention.
        is_causal: whether a query sees only what stands before it, and itself.
        rotary: what rotates queries and keys by their positions, or None.

    `dtype`, `init` and `key` are as for `Linear`.

    Raises:
        UsageError: numbers that do not fit each other.
        InputError: called with arrays that do not, or a mask of something else than booleans.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> attention = ag.nn.MultiheadAttention(4, 16, num_kv_heads=2, is_causal=True, key=jax.random.key(0))
    >>> attention(jnp.ones((8, 20, 16))).shape
    (8, 20, 16)
    """

    query_proj: Linear
    key_proj: Linear
    value_proj: Linear
    output_proj: Linear
    dropout: Dropout
    cache: KVCache | None
    num_heads: int
    num_kv_heads: int
    qk_size: int
    vo_size: int
    is_causal: bool
    rotary: RotaryPositionalEmbedding | None

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
        *,
        num_kv_heads: int | None = None,
        is_causal: bool = False,
        rotary: RotaryPositionalEmbedding | None = None,
        dtype: Any = None,
        init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or ((qk_size is None or vo_size is None) and query_size % num_heads):
            wanted = f"a divisor of query_size={query_size}, or qk_size and vo_size too"
            raise UsageError(argument="num_heads", got=num_heads, wanted=wanted, function="MultiheadAttention")
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            wanted = f"a divisor of num_heads={num_heads}"
            raise UsageError(argument="num_kv_heads", got=num_kv_heads, wanted=wanted, function="MultiheadAttention")
        self.qk_size = query_size // num_heads if qk_size is None else qk_size
        self.vo_size = query_size // num_heads if vo_size is None else vo_size
        if rotary is not None and rotary.embedding_size != self.qk_size:
            wanted = f"one for the size of a head, RotaryPositionalEmbedding({self.qk_size})"
            raise UsageError(argument="rotary", got=rotary, wanted=wanted, function="MultiheadAttention")
        sizes = [
            (query_size, num_heads * self.qk_size, use_query_bias),
            (query_size if key_size is None else key_size, self.num_kv_heads * self.qk_size, use_key_bias),
            (query_size if value_size is None else value_size, self.num_kv_heads * self.vo_size, use_value_bias),
            (num_heads * self.vo_size, query_size if output_size is None else output_size, use_output_bias),
        ]
        self.query_proj, self.key_proj, self.value_proj, self.output_proj = (
            Linear(*each, dtype=dtype, init=init, key=one)
            for each, one in zip(sizes, jax.random.split(key, 4), strict=True)
        )
        self.dropout = Dropout(dropout_p, inference)
        self.cache = None
        self.is_causal = is_causal
        self.rotary = rotary

    def __call__(
        self,
        query: Any,
        key_: Any = None,
        value: Any = None,
        mask: Any = None,
        *,
        bias: Any = None,
        key: jax.Array | None = None,
        inference: bool | None = None,
    ) -> jax.Array:
        """The result for a query [..., time, query_size].

        Args:
            query: what asks.
            key_: [..., keys, key_size], what is compared with; the query itself if None.
            value: [..., keys, value_size], what is taken; `key_` if None.
            mask: of booleans, broadcasts against [..., num_heads, time, keys]: True where a query sees a key.
            bias: is added to what is compared; broadcasts as `mask` does.
            key: for dropout.
            inference: stands for the attribute of dropout, where it is given.
        """
        key_ = query if key_ is None else key_
        value = key_ if value is None else value
        self._check(query, key_, value, mask, bias)
        queries = self._heads(self.query_proj(query), self.num_heads)
        keys = self._heads(self.key_proj(key_), self.num_kv_heads)
        values = self._heads(self.value_proj(value), self.num_kv_heads)
        start: Any = 0
        if self.cache is not None:
            start = self.cache.length.get()
        if self.rotary is not None:
            queries, keys = (self._rotated(each, start) for each in (queries, keys))
        if self.cache is not None:
            keys, values = self.cache.extended(keys, values)
        if self.is_causal or self.cache is not None:
            # Without `is_causal` a cache still holds places that were not filled yet.
            last = jnp.arange(queries.shape[-3])[:, None] if self.is_causal else queries.shape[-3] - 1
            before = jnp.arange(keys.shape[-3])[None] <= start + last
            mask = before if mask is None else aligned(mask, before) & aligned(before, mask)
        weights = attention_weights(queries, keys, mask, bias)
        taken = weighted_values(self.dropout(weights, key=key, inference=inference), values)
        return self.output_proj(taken.reshape(*taken.shape[:-2], self.num_heads * self.vo_size))

    def with_cache(self, max_length: int, batch_shape: tuple[int, ...] = (), dtype: Any = None) -> "MultiheadAttention":
        """A copy for decoding: each call, through `ag.stateful`, sees the keys and values of the calls before it.

        Args:
            max_length: the number of keys that there is room for.
            batch_shape: leading axes of the inputs.
            dtype: of the cache; that of the weights if None.
        """
        shape = (*batch_shape, max_length, self.num_kv_heads)
        dtype = self.key_proj.weight.dtype if dtype is None else dtype
        return at(self).cache.set(KVCache(shape, self.qk_size, self.vo_size, dtype=dtype))

    def _check(self, query: Any, key_: Any, value: Any, mask: Any, bias: Any) -> None:
        check_last_axes(self, query, "time", self.query_proj.in_features, name="query")
        check_last_axes(self, key_, "keys", self.key_proj.in_features, name="key_")
        check_last_axes(self, value, jnp.shape(key_)[-2], self.value_proj.in_features, name="value")
        batch = jnp.shape(query)[:-2]
        for name, each in (("key_", key_), ("value", value)):
            check_broadcasts(self, each, (*batch, *jnp.shape(each)[-2:]), 2, name)
            batch = jnp.broadcast_shapes(batch, jnp.shape(each)[:-2])
        places = jnp.shape(key_)[-2] if self.cache is None else self.cache.keys.get().shape[-3]
        for name, each in (("mask", mask), ("bias", bias)):
            if each is not None:
                fix = f"its axes are [..., heads, queries, keys]; one of keys alone: {name}[..., None, None, :]"
                check_broadcasts(self, each, (*batch, self.num_heads, jnp.shape(query)[-2], places), 3, name, fix)
        if mask is not None and not jnp.issubdtype(jnp.result_type(mask), jnp.bool_):
            raise InputError(
                what="the mask must be of booleans.",
                place=position_of(self),
                got=shown(mask),
                wanted="True where a query sees a key",
                to_fix="mask != 0 for zeros and ones; what is to be added before the exponential goes into bias=",
            )

    def _heads(self, x: jax.Array, heads: int) -> jax.Array:
        return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)

    def _rotated(self, heads: jax.Array, start: Any) -> jax.Array:
        assert self.rotary is not None
        return self.rotary.rotate(heads, (start + jnp.arange(heads.shape[-3]))[:, None])


def attention_weights(queries: jax.Array, keys: jax.Array, mask: Any = None, bias: Any = None) -> jax.Array:
    """How much each query takes of each key, [..., heads, time, keys]: rows add up to 1, computed in 32 bits at least.

    Args:
        queries: [..., time, heads, size].
        keys: [..., keys, heads, size], or a divisor of that number of heads, each for as many heads of the queries.
        mask: of booleans, broadcasts against the result: False where nothing is taken.
        bias: is added before the exponential; broadcasts likewise.
    """
    scaled = queries / math.sqrt(queries.shape[-1])
    heads, shared = queries.shape[-2], keys.shape[-2]
    if heads == shared:
        scores = jnp.einsum("...thd,...shd->...hts", scaled, keys)
    else:
        grouped = scaled.reshape(*scaled.shape[:-2], shared, heads // shared, scaled.shape[-1])
        scores = jnp.einsum("...tkgd,...skd->...kgts", grouped, keys)
        scores = scores.reshape(*scores.shape[:-4], heads, *scores.shape[-2:])
    scores = widened(scores)
    scores = scores if bias is None else scores + aligned(scores, bias)
    # Not -inf: a query that sees nothing would take nan.
    scores = scores if mask is None else jnp.where(aligned(scores, mask), scores, jnp.finfo(scores.dtype).min)
    return jax.nn.softmax(scores, axis=-1).astype(queries.dtype)


def weighted_values(weights: jax.Array, values: jax.Array) -> jax.Array:
    """[..., time, heads, size], what weights [..., heads, time, keys] take of values [..., keys, heads, size]."""
    heads, shared = weights.shape[-3], values.shape[-2]
    if heads == shared:
        return jnp.einsum("...hts,...shd->...thd", weights, values)
    grouped = weights.reshape(*weights.shape[:-3], shared, heads // shared, *weights.shape[-2:])
    taken = jnp.einsum("...kgts,...skd->...tkgd", grouped, values)
    return taken.reshape(*taken.shape[:-3], heads, taken.shape[-1])
