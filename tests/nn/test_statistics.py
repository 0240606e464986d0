"""Layers that keep statistics: under `vmap` and over devices they are those of the whole batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)
XS = jax.random.normal(KEY, (8, 3, 5))


def run(norm: Any, xs: Any) -> Any:
    """A call that moves the statistics."""
    return norm(xs)


def mapped(norm: Any, xs: Any) -> Any:
    """The same, one example at a time."""
    return jax.vmap(norm, axis_name="batch")(xs)


def test_a_mapped_axis_is_a_batch_axis() -> None:
    """With `axis_name`, `vmap` over examples gives the result and the statistics of the whole batch."""
    whole = ag.stateful(run)(nn.BatchNorm(3, num_spatial_dims=1), XS)
    by_one = jax.jit(ag.stateful(mapped))(nn.BatchNorm(3, "batch", num_spatial_dims=1), XS)
    for got, wanted in zip(jax.tree.leaves(by_one), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_a_batch_over_devices_has_one_mean() -> None:
    """Where the batch is spread over devices, statistics are those of the whole batch."""
    spread = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    norm = nn.BatchNorm(3, num_spatial_dims=1)
    out, after = jax.jit(ag.stateful(run))(norm, jax.device_put(XS, spread))
    wanted, wanted_after = ag.stateful(run)(norm, XS)
    np.testing.assert_allclose(out, wanted, atol=1e-6)
    np.testing.assert_allclose(after.running_var.value, wanted_after.running_var.value, rtol=1e-6)


def test_one_value_per_channel_has_no_statistics() -> None:
    """In training one example of a vector is refused, as PyTorch does; in inference it is fine."""
    norm = nn.BatchNorm(3)
    with pytest.raises(nn.InputError, match="more than one value per channel"):
        norm(jnp.ones(3))
    assert ag.inference(norm)(jnp.ones(3)).shape == (3,)


def test_an_axis_that_is_not_mapped_is_told() -> None:
    """Outside of the `vmap` whose axis it names, the layer says so and not JAX; without a name it takes the batch."""
    with pytest.raises(nn.InputError, match="an axis that is not mapped here") as caught:
        nn.Sequential(nn.BatchNorm(3, "batch"))(XS[..., 0])
    assert caught.value.place == "model.layers[0] (BatchNorm)"
    assert "jax.vmap(model, axis_name='batch')" in str(caught.value)
    named, whole = (ag.stateful(run)(nn.BatchNorm(3, name), XS[..., 0])[0] for name in (None, ()))
    np.testing.assert_array_equal(named, whole)


def test_statistics_outside_of_stateful_are_refused() -> None:
    """A training call that would lose the statistics is an error of the variable's."""
    with pytest.raises(ag.StateError):
        nn.BatchNorm(3)(XS[..., 0])
    plain = nn.BatchNorm(3, track_running_stats=False)
    np.testing.assert_allclose(plain(XS[..., 0]).mean(0), np.zeros(3), atol=1e-6)


def test_statistics_are_not_trained_and_keep_their_dtype() -> None:
    """An optimiser sees weight and bias only; a batch of bf16 moves float32 statistics."""
    norm = nn.BatchNorm(3)
    assert len(jax.tree.leaves(ag.partition(norm, ag.trainable)[0])) == 2
    out, after = ag.stateful(run)(norm, XS[..., 0].astype(jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    assert after.running_mean.value.dtype == jnp.float32


def test_a_normalised_layer_keeps_its_ties() -> None:
    """A weight that is tied elsewhere is normalised where it is used, and stays one leaf."""

    class Model(ag.Module):
        first: nn.Linear
        second: nn.WeightNorm

        def __init__(self) -> None:
            self.first = nn.Linear(3, 3, False, key=KEY)
            self.second = nn.WeightNorm(self.first)

        def __call__(self, x: Any) -> Any:
            return self.second(self.first(x))

    model = Model()
    assert len(jax.tree.leaves(model)) == 2
    np.testing.assert_allclose(model(jnp.ones(3)), model.first(model.first(jnp.ones(3))), rtol=1e-5)


def test_a_batch_of_none_moves_no_statistics() -> None:
    """There is nothing to take a mean of: the running statistics stay finite, as PyTorch's do."""
    out, after = ag.stateful(nn.BatchNorm.__call__)(nn.BatchNorm(3), jnp.zeros((0, 3)))
    assert out.shape == (0, 3)
    assert after.running_mean is not None
    assert after.running_var is not None
    np.testing.assert_array_equal(after.running_mean.value, np.zeros(3))
    np.testing.assert_array_equal(after.running_var.value, np.ones(3))


def test_without_momentum_statistics_are_means_over_batches() -> None:
    """All batches count alike, as with PyTorch's `momentum=None`; the count is a variable."""
    batches = np.random.default_rng(0).normal(size=(5, 8, 3)).astype(np.float32)
    norm = nn.BatchNorm(3, momentum=None)
    moved = jax.jit(ag.stateful(nn.BatchNorm.__call__))
    for batch in batches:
        _, norm = moved(norm, batch)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.batches is not None
    assert int(norm.batches.value) == 5
    np.testing.assert_allclose(norm.running_mean.value, batches.mean(1).mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.running_var.value, batches.var(1, ddof=1).mean(0), rtol=1e-5)
