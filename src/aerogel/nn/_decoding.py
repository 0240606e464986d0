"""Models that decode one token after the other."""

from typing import Any, TypeVar

import jax

from ._attention import MultiheadAttention
from ._stack import Stack

M = TypeVar("M")


def with_cache(model: M, max_length: int, batch_shape: tuple[int, ...] = (), dtype: Any = None) -> M:
    """The model for decoding: every causal attention in it keeps the keys and values of earlier calls.

    Call it through `ag.stateful`, with one token or several at a time. Attention that is not causal is left as it is:
    what it sees does not grow.

    Args:
        model: any tree with `MultiheadAttention` in it, also inside of a `Stack`.
        max_length: the number of tokens that there is room for.
        batch_shape: leading axes of the inputs.
        dtype: of the caches; that of the weights if None.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> model = ag.nn.TransformerBlock(2, 4, is_causal=True, key=jax.random.key(0))
    >>> decode = ag.stateful(ag.nn.TransformerBlock.__call__)
    >>> xs = jax.random.normal(jax.random.key(1), (3, 4))
    >>> one, cached = decode(ag.nn.with_cache(model, 10), xs[:1])
    >>> two, cached = decode(cached, xs[1:])
    >>> bool(jnp.allclose(jnp.concatenate([one, two]), model(xs), atol=1e-6)), int(cached.attention.cache.length.value)
    (True, 3)
    """

    def cached(node: Any) -> Any:
        if isinstance(node, Stack):
            return node.map(lambda layer: with_cache(layer, max_length, batch_shape, dtype))
        if isinstance(node, MultiheadAttention) and node.is_causal:
            return node.with_cache(max_length, batch_shape, dtype)
        return node

    return jax.tree.map(cached, model, is_leaf=lambda node: isinstance(node, Stack | MultiheadAttention))
