"""Layers compute what Equinox's do, with its parameters, one example at a time and for a batch at once."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn
from nn.test_against_torch import CASES

KEY = jax.random.key(0)
theirs = eqx.nn

# Equinox's layer, ours, and the axes of one example.
PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "Linear": (lambda: theirs.Linear(3, 4, key=KEY), lambda: nn.Linear(3, 4, key=KEY), (3,)),
    "MLP": (
        lambda: theirs.MLP(3, "scalar", 5, 2, jnp.tanh, jnp.exp, key=KEY),
        lambda: nn.MLP(3, "scalar", 5, 2, jnp.tanh, jnp.exp, key=KEY),
        (3,),
    ),
    "Conv2d": (
        lambda: theirs.Conv2d(4, 6, (3, 2), 2, ((1, 0), (2, 1)), (1, 2), 2, padding_mode="CIRCULAR", key=KEY),
        lambda: nn.Conv2d(4, 6, (3, 2), 2, ((1, 0), (2, 1)), (1, 2), 2, padding_mode="circular", key=KEY),
        (4, 6, 7),
    ),
    "Conv1d": (
        lambda: theirs.Conv1d(2, 3, 4, 3, "SAME", key=KEY),
        lambda: nn.Conv1d(2, 3, 4, 3, "same", key=KEY),
        (2, 8),
    ),
    "LayerNorm": (lambda: theirs.LayerNorm((2, 3)), lambda: nn.LayerNorm((2, 3)), (2, 3)),
    "RMSNorm": (lambda: theirs.RMSNorm(3), lambda: nn.RMSNorm(3, use_bias=True), (3,)),
    "GroupNorm": (lambda: theirs.GroupNorm(2, 6), lambda: nn.GroupNorm(2, 6), (6, 2, 3)),
    "AvgPool2d": (
        lambda: theirs.AvgPool2d((3, 2), 2, 1, use_ceil=False),
        lambda: nn.AvgPool2d((3, 2), 2, 1),
        (2, 6, 7),
    ),
    "MaxPool1d": (lambda: theirs.MaxPool1d(3, 2, 1), lambda: nn.MaxPool1d(3, 2, 1), (2, 7)),
    "GRUCell": (
        lambda: theirs.GRUCell(3, 4, key=KEY),
        lambda: nn.GRUCell(3, 4, key=KEY),
        (3,),
    ),
    "LSTMCell": (
        lambda: theirs.LSTMCell(3, 4, key=KEY),
        lambda: nn.LSTMCell(3, 4, key=KEY),
        (3,),
    ),
    "MultiheadAttention": (
        lambda: theirs.MultiheadAttention(2, 6, qk_size=4, vo_size=5, use_key_bias=True, key=KEY),
        lambda: nn.MultiheadAttention(2, 6, qk_size=4, vo_size=5, use_key_bias=True, key=KEY),
        (5, 6),
    ),
    "RotaryPositionalEmbedding": (  # of a size that no other test has: Equinox keeps the first table of each size
        lambda: theirs.RotaryPositionalEmbedding(10, 100.0),
        lambda: nn.RotaryPositionalEmbedding(10, 100.0),
        (5, 10),
    ),
    "PReLU": (lambda: theirs.PReLU(0.1), lambda: nn.PReLU(init_value=0.1), (3,)),
    "Identity": (lambda: theirs.Identity(1), lambda: nn.Identity(1), (3,)),
    "Sequential": (
        lambda: theirs.Sequential([theirs.Linear(3, 4, key=KEY), theirs.Lambda(jnp.tanh)]),
        lambda: nn.Sequential(nn.Linear(3, 4, key=KEY), nn.Lambda(jnp.tanh)),
        (3,),
    ),
    "Dropout": (lambda: theirs.Dropout(0.3), lambda: nn.Dropout(0.3, shared_axes=(0,)), (8,)),
    "Pool": (
        lambda: theirs.Pool(1.0, jax.lax.mul, 2, (2, 3), 2, ((1, 0), (2, 1))),
        lambda: nn.Pool(1.0, jax.lax.mul, 2, (2, 3), 2, ((1, 0), (2, 1))),
        (2, 4, 5),
    ),
    # Windows of one size, as PyTorch's and Equinox's differ elsewhere.
    "AdaptivePool": (lambda: theirs.AdaptivePool(2, 2, jnp.min), lambda: nn.AdaptivePool(2, 2, jnp.min), (2, 4, 6)),
    "AdaptiveMaxPool1d": (lambda: theirs.AdaptiveMaxPool1d(3), lambda: nn.AdaptiveMaxPool1d(3), (2, 6)),
    "AdaptiveMaxPool3d": (lambda: theirs.AdaptiveMaxPool3d(2), lambda: nn.AdaptiveMaxPool3d(2), (1, 4, 2, 6)),
}

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "GRUCell": lambda cell, x: cell(x, x[..., :1] * jnp.ones(4)),
    "LSTMCell": lambda cell, x: cell(x, (x[..., :1] * jnp.ones(4), x[..., 1:2] * jnp.ones(4))),
    "MultiheadAttention": lambda layer, x: layer(x, x, 2 * x),
    "Dropout": lambda layer, x: layer(x, key=KEY),
}


def with_parameters_of(source: Any, layer: Any) -> Any:
    """Our layer with Equinox's parameters, which are called the same; biases of convolutions have axes of size 1."""
    for path, value in jax.tree_util.tree_flatten_with_path(eqx.filter(source, eqx.is_array))[0]:
        name = jax.tree_util.keystr(path).removeprefix(".").replace("negative_slope", "weight")
        shape = ag.at(layer)[name].get().shape
        assert shape == tuple(size for size in value.shape if size != 1) or shape == value.shape
        layer = ag.at(layer)[name].set(value.reshape(shape) + 0.1)
        source = eqx.tree_at(lambda tree, path=path: _at(tree, path), source, value + 0.1)
    return source, layer


def _at(tree: Any, path: Any) -> Any:
    for key in path:
        tree = getattr(tree, key.name) if hasattr(key, "name") else tree[key.idx]
    return tree


@pytest.mark.parametrize("name", PAIRS)
def test_a_layer_of_equinox_s_has_its_equal(name: str) -> None:
    """For a batch, ours gives what Equinox's gives under `vmap`."""
    make_theirs, make_ours, shape = PAIRS[name]
    source, layer = with_parameters_of(make_theirs(), make_ours())
    xs = jax.random.normal(KEY, (4, *shape))
    called = CALLS.get(name, lambda layer, x: layer(x))
    wanted, got = jax.jit(lambda layer, xs: (jax.vmap(lambda x: called(source, x))(xs), called(layer, xs)))(layer, xs)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_every_layer_of_equinox_s_is_compared() -> None:
    """Each that has its equal by the same name is compared with Equinox's here, or with PyTorch's; or a kind of it."""
    makers = [make for _, make, _ in PAIRS.values()] + [case.make for case in CASES.values()]
    compared = {getattr(nn, name) for make in makers for name in make.__code__.co_names if hasattr(nn, name)}
    shared = {name for name in vars(theirs) if name[0].isupper() and hasattr(nn, name)}
    assert len(shared) >= 40
    assert {name for name in shared if not any(issubclass(cls, getattr(nn, name)) for cls in compared)} == set()


def test_positions_are_as_exact_as_the_default_type() -> None:
    """With 64 bits on, rotations by large angles are those of 64 bits, as Equinox's are."""
    with jax.enable_x64(True):
        xs = jax.random.normal(KEY, (1000, 6), float)
        got, wanted = nn.RotaryPositionalEmbedding(6)(xs), theirs.RotaryPositionalEmbedding(6, dtype=xs.dtype)(xs)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)
        waves = nn.SinusoidalPositionalEmbedding(2).waves(jnp.array([999]))
        np.testing.assert_allclose(waves[0], [np.sin(999.0), np.cos(999.0)], rtol=0, atol=1e-12)
