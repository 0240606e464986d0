"""Integers are numbers: layers compute with them as with floating-point ones, and do not round the results."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)
X = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (4, 6, 8)), jnp.int32)
LAYERS: dict[str, Any] = {
    "LayerNorm": nn.LayerNorm(8),
    "RMSNorm": nn.RMSNorm(8),
    "GroupNorm": nn.GroupNorm(2, 6, num_spatial_dims=1),
    "InstanceNorm": nn.InstanceNorm(6, num_spatial_dims=1),
    "BatchNorm": ag.inference(nn.BatchNorm(8)),
    "RotaryPositionalEmbedding": nn.RotaryPositionalEmbedding(8),
    "SinusoidalPositionalEmbedding": nn.SinusoidalPositionalEmbedding(8),
    "LinearRecurrentUnit": nn.LinearRecurrentUnit(8, 4, key=KEY),
    "TransformerBlock": nn.TransformerBlock(2, 8, key=KEY),
    "linear_recurrence": functools.partial(nn.linear_recurrence, 0.5),
}


@pytest.mark.parametrize("name", LAYERS)
def test_integers_give_what_their_floats_give(name: str) -> None:
    """The results are those of the same numbers in float32."""
    for one, other in zip(*(jax.tree.leaves(LAYERS[name](x)) for x in (X, X.astype(jnp.float32))), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, jnp.uint8])
@pytest.mark.parametrize("use_ceil", [False, True])
def test_largest_integers(dtype: Any, use_ceil: bool) -> None:
    """Maxima of integers are integers; padding is below all of them."""
    x = jnp.abs(X).astype(dtype) * (1 if dtype == jnp.uint8 else -1)
    out = nn.MaxPool1d(3, 2, 1, use_ceil)(x)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, nn.MaxPool1d(3, 2, 1, use_ceil)(x.astype(jnp.float32)))
