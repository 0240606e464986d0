"""Keys go where random numbers are drawn, and nowhere else; models have an inference and a train view."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)


def test_a_missing_key_is_told_with_the_layer_s_place() -> None:
    """The error names the layer, inside of a jitted model too."""

    class Model(ag.Module):
        body: nn.Sequential

        def __call__(self, x: Any) -> Any:
            return self.body(x)

    model = Model(nn.Sequential(jnp.tanh, nn.Dropout(0.1)))
    with pytest.raises(nn.MissingKeyError) as caught:
        jax.jit(lambda model, x: model(x))(model, jnp.ones(3))
    assert caught.value.place == "model.body.layers[1] (Dropout)"


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.AlphaDropout(0.5)])
def test_inference_and_train_views(layer: Any) -> None:
    """`ag.inference` makes a layer the identity, `ag.training` undoes that, and a call can overrule both."""
    x = jnp.arange(1.0, 9.0)
    calm = ag.inference({"here": [layer]})["here"][0]
    np.testing.assert_array_equal(calm(x), x)
    np.testing.assert_array_equal(layer(x, inference=True), x)
    assert ag.training(calm) == layer
    assert (np.asarray(calm(x, key=KEY, inference=False)) != x).any()


def test_inference_reaches_layers_in_structure() -> None:
    """A layer in a static field is no part of the tree, and is told all the same."""

    class Holder(ag.Module):
        drop: nn.Dropout = ag.field(static=True)

    assert ag.inference([Holder(nn.Dropout())])[0].drop.inference


def test_dropout_keeps_the_mean_and_the_dtype() -> None:
    """A fraction p of the entries is zero, and the others are scaled by 1 / (1 - p)."""
    out = nn.Dropout(0.25)(jnp.ones(20_000, jnp.bfloat16), key=KEY)
    assert out.dtype == jnp.bfloat16
    assert abs(float((out == 0).mean()) - 0.25) < 0.02
    assert set(np.unique(np.asarray(out, np.float32))) == {0.0, np.float32(jnp.bfloat16(4 / 3))}
    assert not nn.Dropout(1.0)(jnp.ones(3), key=KEY).any()


def test_shared_axes_are_dropped_as_a_whole() -> None:
    """One decision holds along `shared_axes`: for whole channels here."""
    out = np.asarray(nn.Dropout(0.5, shared_axes=(-1, -2))(jnp.ones((8, 16, 3, 4)), key=KEY))
    assert set(np.unique(out.mean((-1, -2)))) == {0.0, 2.0}
    assert 0 < (out[:, :, 0, 0] == 0).sum() < out[:, :, 0, 0].size


def test_sequential_gives_each_layer_a_key_of_its_own() -> None:
    """Two dropouts draw different numbers, and what takes no key is given none."""

    class NoKey(ag.Module):
        def __call__(self, x: Any) -> Any:
            return x

    class Half(nn.Dropout):
        """A layer whose call is its base's."""

    model = nn.Sequential([Half(), NoKey(), jax.nn.relu, jax.jit(jnp.abs), nn.Dropout(0.5)])
    out = model(jnp.ones(4000), key=KEY)
    assert abs(float((out == 0).mean()) - 0.75) < 0.03
    assert model[-1] == nn.Dropout(0.5)
    assert len(model[1:3]) == 2
    assert len(list(model)) == 5


def test_legacy_keys_work() -> None:
    """Keys of `jax.random.PRNGKey` are keys."""
    key = jax.random.PRNGKey(0)
    layer = nn.Linear(3, 3, key=key)
    assert nn.Sequential(layer, nn.Dropout())(jnp.ones(3), key=key).shape == (3,)


def test_no_layer_uses_a_key_twice() -> None:
    """JAX's check of keys finds nothing in constructors and calls of layers that split them, and finds a real reuse."""

    def run(key: Any) -> Any:
        keys = jax.random.split(key, 6)
        block = lambda key: nn.TransformerBlock(2, 4, 4, dropout_p=0.1, key=key)  # noqa: E731
        model = nn.Sequential(nn.Linear(4, 4, key=keys[0]), nn.Residual(nn.Dropout(), nn.Dropout()))
        x = model(jnp.ones((3, 4)), key=keys[1])
        x = nn.Stack(block, 2, key=keys[2])(x, key=keys[3])
        return nn.RNN(4, 4, 2, dropout=0.5, key=keys[4])(x, key=keys[5])[0]

    with jax.debug_key_reuse(True):
        assert jax.jit(run)(KEY).shape == (3, 4)
        with pytest.raises(jax.errors.KeyReuseError):
            jax.jit(lambda key: nn.Dropout()(jax.random.normal(key, 3), key=key))(KEY)
