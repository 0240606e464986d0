"""Transposed convolutions are what their name says."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("padding", "stride", "extra", "groups"), [(1, 2, 1, 1), ("same", 1, 0, 2), ("same", 2, 0, 1), ("valid", 3, 2, 2)]
)
def test_it_is_the_gradient_of_the_convolution(padding: Any, stride: int, extra: int, groups: int) -> None:
    """With a convolution's weight and no bias it is its vjp; "same" makes space stride times larger."""
    conv = nn.Conv1d(4, 6, 3, stride, padding, groups=groups, use_bias=False, key=KEY)
    back = nn.ConvTranspose1d(6, 4, 3, stride, padding, extra, groups, False, key=KEY)
    back = ag.at(back).weight.set(conv.weight)
    x = jnp.arange(2 * 4 * 8.0).reshape(2, 4, 8)
    y, vjp = jax.vjp(conv, x)
    weights = jax.random.normal(KEY, y.shape)
    np.testing.assert_allclose(back(weights), vjp(weights)[0], atol=1e-5)
