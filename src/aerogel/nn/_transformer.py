"""Blocks of transformers."""

from collections.abc import Callable
from typing import Any

import jax

from aerogel.module import Module

from ._attention import MultiheadAttention
from ._check import shown
from ._dropout import Dropout
from ._errors import InputError
from ._init import Initializer
from ._layer_norm import LayerNorm
from ._linear import Linear
from ._position import position_of
from ._positions import RotaryPositionalEmbedding


class TransformerBlock(Module):
    """Self-attention, then attention to a context if there is one, then two linear layers; each is added to its input.

    Inputs and results are [..., time, size]. With `is_causal` this is a block of a decoder.

    Args:
        num_heads: of attention.
        size: of the last axis.
        mlp_size: between the two linear layers; by default `4 * size`.
        activation: between the two linear layers.
        dropout_p: of attention weights, and of what is added, in training.
        norm_first: whether each part normalises its input; else the sums are normalised.
        use_bias: whether linear layers have biases.
        is_causal: whether a place sees only what stands before it, and itself.
        context_size: of the last axis of the context, for a block that takes one.
        num_kv_heads: as for `MultiheadAttention`.
        rotary: as for `MultiheadAttention`, in self-attention.
        norm: makes a normalisation layer for a size: `nn.LayerNorm`, `nn.RMSNorm`.

    `dtype`, `init` and `key` are as for `Linear`; a `norm` that wants a dtype is given one by whoever writes it.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> ag.nn.TransformerBlock(4, 16, is_causal=True, key=jax.random.key(0))(jnp.ones((8, 20, 16))).shape
    (8, 20, 16)
    """

    attention: MultiheadAttention
    cross: MultiheadAttention | None
    up: Linear
    down: Linear
    norm_attention: Callable[..., Any]
    norm_cross: Callable[..., Any] | None
    norm_mlp: Callable[..., Any]
    dropout: Dropout
    activation: Callable[[Any], Any]
    norm_first: bool

    def __init__(
        self,
        num_heads: int,
        size: int,
        mlp_size: int | None = None,
        activation: Callable[[Any], Any] = jax.nn.gelu,
        dropout_p: float = 0.0,
        norm_first: bool = True,
        use_bias: bool = True,
        *,
        is_causal: bool = False,
        context_size: int | None = None,
        num_kv_heads: int | None = None,
        rotary: RotaryPositionalEmbedding | None = None,
        norm: Callable[[int], Callable[..., Any]] = LayerNorm,
        dtype: Any = None,
        init: Initializer | None = None,
        key: jax.Array,
    ) -> None:
        keys = jax.random.split(key, 4)
        width = 4 * size if mlp_size is None else mlp_size
        of_all: dict[str, Any] = {"dtype": dtype, "init": init}
        biases = dict.fromkeys((f"use_{each}_bias" for each in ("query", "key", "value", "output")), use_bias)
        of_attention = {"dropout_p": dropout_p, "num_kv_heads": num_kv_heads, **biases, **of_all}
        self.attention = MultiheadAttention(
            num_heads, size, is_causal=is_causal, rotary=rotary, key=keys[0], **of_attention
        )
        has_context = context_size is not None
        self.cross = (
            MultiheadAttention(num_heads, size, context_size, context_size, key=keys[1], **of_attention)
            if has_context
            else None
        )
        self.up = Linear(size, width, use_bias, key=keys[2], **of_all)
        self.down = Linear(width, size, use_bias, key=keys[3], **of_all)
        self.norm_attention, self.norm_mlp = norm(size), norm(size)
        self.norm_cross = norm(size) if has_context else None
        self.dropout = Dropout(dropout_p)
        self.activation = activation
        self.norm_first = norm_first

    def __call__(
        self, x: Any, context: Any = None, mask: Any = None, *, context_mask: Any = None, key: jax.Array | None = None
    ) -> jax.Array:
        """The result for `x`.

        Args:
            x: [..., time, size].
            context: [..., places, context_size], for a block that takes one.
            mask: of self-attention, as in `MultiheadAttention`.
            context_mask: of attention to the context.
            key: for dropout.

        Raises:
            InputError: there is a context and it takes none, or the other way round; or shapes that do not fit.
        """
        if (context is None) != (self.cross is None):
            raise InputError(
                what=f"the block was called {'without a' if context is None else 'with a'} context.",
                place=position_of(self),
                got="nothing" if context is None else shown(context),
                wanted="an array" if context is None else "nothing: it was made without context_size",
                to_fix="pass one, block(x, context)" if context is None else "make it with context_size=",
            )
        keys = iter([None] * 6 if key is None else jax.random.split(key, 6))

        def mlp(x: Any) -> Any:
            return self.down(self.dropout(self.activation(self.up(x)), key=next(keys)))

        parts: list[tuple[Any, Callable[[Any], Any]]] = [
            (self.norm_attention, lambda x: self.attention(x, mask=mask, key=next(keys)))
        ]
        if self.cross is not None:
            cross = self.cross
            parts.append((self.norm_cross, lambda x: cross(x, context, mask=context_mask, key=next(keys))))
        for norm, part in (*parts, (self.norm_mlp, mlp)):
            added = self.dropout(part(norm(x) if self.norm_first else x), key=next(keys))
            x = x + added if self.norm_first else norm(x + added)
        return x
