"""Attention: heads that share keys, masks, biases, and decoding with a cache."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)
XS = jax.random.normal(jax.random.key(1), (2, 6, 8))


def test_shared_heads_are_repeated_heads() -> None:
    """Grouped-query attention is attention with each head of keys and values repeated."""
    shared = nn.MultiheadAttention(4, 8, num_kv_heads=2, key=KEY)
    whole = nn.MultiheadAttention(4, 8, key=KEY)
    repeat = lambda w: jnp.repeat(w.reshape(2, 2, 8), 2, axis=0).reshape(8, 8)  # noqa: E731
    whole = ag.at(whole).query_proj.set(shared.query_proj)
    whole = ag.at(whole).output_proj.set(shared.output_proj)
    for name in ("key_proj.weight", "value_proj.weight"):
        whole = ag.at(whole)[name].set(repeat(ag.at(shared)[name].get()))
    np.testing.assert_allclose(jax.jit(shared)(XS), jax.jit(whole)(XS), atol=1e-6)


def test_masks_and_biases_mean_the_same() -> None:
    """A mask is a bias of -inf; causal attention has a triangular one; what sees nothing gives no nan."""
    layer = nn.MultiheadAttention(2, 8, key=KEY)
    causal = nn.MultiheadAttention(2, 8, is_causal=True, key=KEY)
    mask = jnp.tril(jnp.ones((6, 6), bool))
    wanted = jax.jit(causal)(XS)
    np.testing.assert_allclose(jax.jit(lambda x: layer(x, mask=mask))(XS), wanted, atol=1e-6)
    biased = jax.jit(lambda x: layer(x, bias=jnp.where(mask, 0, -jnp.inf)))(XS)
    np.testing.assert_allclose(biased, wanted, atol=1e-6)
    padding = (jnp.arange(6) < 4)[None, None, None]
    np.testing.assert_allclose(layer(XS, mask=padding), layer(XS, XS[:, :4]), atol=1e-6)
    assert bool(jnp.isfinite(layer(XS, mask=jnp.zeros((6, 6), bool))).all())


def test_dropout_of_weights_needs_a_key() -> None:
    """Attention weights are dropped in training, with the key of the call."""
    layer = nn.MultiheadAttention(2, 8, dropout_p=0.5, key=KEY)
    with pytest.raises(nn.MissingKeyError):
        layer(XS)
    assert not bool(jnp.allclose(layer(XS, key=KEY), ag.inference(layer)(XS)))


class Language(ag.Module):
    """A model of a few causal blocks, stacked, with rotary positions."""

    blocks: nn.Stack[Any]

    def __init__(self) -> None:
        options: Any = {"is_causal": True, "num_kv_heads": 2, "rotary": nn.RotaryPositionalEmbedding(2)}
        self.blocks = nn.Stack(lambda key: nn.TransformerBlock(4, 8, 16, **options, key=key), 3, key=KEY)

    def __call__(self, x: Any) -> Any:
        return self.blocks(x)


def test_decoding_with_a_cache_is_the_whole_at_once() -> None:
    """Tokens one at a time, after a prompt of four, give what all of them at once give, in a stack too."""
    model = Language()
    wanted = jax.jit(Language.__call__)(model, XS)
    decode = jax.jit(ag.stateful(Language.__call__))
    cached = nn.with_cache(model, 6, (2,))
    outs = []
    for part in (XS[:, :4], XS[:, 4:5], XS[:, 5:]):
        out, cached = decode(cached, part)
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 1), wanted, atol=1e-5)
    assert cached.blocks.layers.attention.cache.length.value.tolist() == [6] * 3
    with pytest.raises(nn.InputError, match="the cache has room for other shapes"):
        decode(cached, XS[:1])


@pytest.mark.parametrize("stacked", [False, True])
def test_a_full_cache_is_told_of(stacked: bool) -> None:
    """Results of tokens beyond its end, and all after, are NaN: never something that looks like a result."""
    model = Language() if stacked else Language().blocks[0]
    decode = ag.stateful(type(model).__call__)
    start = nn.with_cache(model, 5, (2,))
    compiled = jax.jit(decode)
    out, cached = compiled(start, XS[:, :4])
    assert not jnp.isnan(out).any()
    last, full = compiled(cached, XS[:, 4:5])
    assert not jnp.isnan(last).any()
    beyond, after = compiled(full, XS[:, 5:6])
    assert jnp.isnan(beyond).all()
    assert jnp.isnan(compiled(cached, XS[:, 4:6])[0]).all()
    assert jnp.isnan(compiled(after, XS[:, 5:6])[0]).all()


def test_relative_positions_are_all_that_rotations_show() -> None:
    """The product of a rotated query and key depends on the difference of their positions only."""
    rotary = nn.RotaryPositionalEmbedding(8)
    q, k = XS[0, 0], XS[0, 1]
    products = [rotary.rotate(q, 3 + shift) @ rotary.rotate(k, 1 + shift) for shift in (0, 5, 50)]
    np.testing.assert_allclose(products, products[0], rtol=1e-4)
    waves = nn.SinusoidalPositionalEmbedding(8).waves(jnp.arange(4))
    np.testing.assert_allclose((waves**2).sum(-1), np.full(4, 4.0), rtol=1e-6)


def test_a_mask_of_keys_alone_is_told_its_axes() -> None:
    """PyTorch's `key_padding_mask`, [batch, keys], has no axes of heads and queries: the error says how to add them."""
    layer, is_there = nn.MultiheadAttention(2, 8, key=KEY), jnp.ones((3, 6), bool)
    xs = jnp.ones((3, 6, 8))
    with pytest.raises(nn.InputError, match=re.escape("one of keys alone: mask[..., None, None, :]")):
        layer(xs, mask=is_there)
    assert layer(xs, mask=is_there[..., None, None, :]).shape == (3, 6, 8)
