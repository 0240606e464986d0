"""Adapters stand where arrays stand, and precision is changed for a call only."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)


def model() -> Any:
    """A convolution and a linear layer."""
    one, two = jax.random.split(KEY)
    flat = lambda x: x.reshape(*x.shape[:-2], -1)  # noqa: E731
    return nn.Sequential(nn.Conv1d(3, 4, 2, key=one), flat, nn.Linear(16, 5, key=two))


XS = jax.random.normal(jax.random.key(1), (6, 3, 5))


@pytest.mark.parametrize("base", [lambda w: w, nn.Quantized])
def test_lora_trains_its_factors_only(base: Any) -> None:
    """At first nothing changes; gradients reach `a` and `b`, and never the weight, be it whole or in 8 bits."""
    plain = ag.at(model(), "layers[*].weight").apply(base)
    tuned = ag.at(plain, "layers[*].weight").apply(lambda w: nn.LoRA(w, 2, 0.5, key=KEY))
    np.testing.assert_allclose(jax.jit(tuned)(XS), jax.jit(plain)(XS), atol=1e-6)
    grads = jax.jit(ag.grad(lambda m: (m(XS) ** 2).sum()))(tuned)
    assert grads[2].weight.b.any()
    assert not jax.tree.leaves(grads[2].weight.base)
    tuned = ag.at(tuned).layers[0].weight.b.set(jnp.ones((4, 2)))
    whole = nn.merged(tuned)
    assert whole[0].weight.shape == (4, 3, 2)
    np.testing.assert_allclose(whole(XS), tuned(XS), rtol=1e-5, atol=1e-6)
    assert len(jax.tree.leaves(whole)) == 4


@pytest.mark.parametrize(("dtype", "error"), [(jnp.int8, 1 / 250), (jnp.float8_e4m3fn, 1 / 15)])
def test_narrow_weights_are_near(dtype: Any, error: float) -> None:
    """Each entry is within half a step of the narrow type, and all leaves but scales are narrow."""
    weight = nn.Linear(64, 8, key=KEY).weight
    kept = nn.Quantized(weight, dtype)
    assert kept.values.dtype == dtype
    assert kept.shape == weight.shape
    assert float(abs(kept.get() - weight).max()) <= error * float(abs(weight).max())
    np.testing.assert_array_equal(nn.Quantized(jnp.zeros((2, 3)), dtype).get(), jnp.zeros((2, 3)))


def test_adapters_in_a_stack() -> None:
    """`Stack.map` gives each layer an adapter of its own."""
    stack = nn.Stack(lambda key: nn.Linear(4, 4, key=key), 3, key=KEY)
    small = stack.map(lambda layer: ag.at(layer).weight.apply(nn.Quantized))
    assert small.layers.weight.values.shape == (3, 4, 4)
    assert small.layers.weight.scales.shape == (3, 4, 1)
    np.testing.assert_allclose(small(jnp.ones(4)), stack(jnp.ones(4)), atol=0.02)


def test_precision_is_that_of_a_call() -> None:
    """Parameters stay float32 and get float32 gradients; what is computed is bfloat16, the result float32 again."""
    layer = nn.Precision(model(), compute=jnp.bfloat16, output=jnp.float32)
    out, grads = jax.jit(jax.value_and_grad(lambda m: m(XS).sum()))(layer)
    assert out.dtype == jnp.float32
    assert {leaf.dtype.name for leaf in jax.tree.leaves(grads)} == {"float32"}
    assert jax.eval_shape(nn.Precision(model(), compute=jnp.bfloat16), XS).dtype == jnp.bfloat16
    part = nn.Precision(model(), compute=jnp.bfloat16, where="layers[0]")
    assert jax.eval_shape(part, XS).dtype == jnp.float32
    assert nn.Precision(model(), param=jnp.bfloat16).layer[0].weight.dtype == jnp.bfloat16
    with pytest.raises(nn.InputError) as caught:
        layer(jnp.ones((4, 5)))
    assert caught.value.place == "model.layer.layers[0] (Conv1d)"


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("weight_dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(("dtype", "step"), [(jnp.int8, 1 / 127), (jnp.float8_e4m3fn, 2**-3), (jnp.float8_e5m2, 2**-2)])
def test_weights_of_few_bits_are_near(dtype: Any, step: float, weight_dtype: Any, size: float) -> None:
    """No entry is further off than half a step (and the rounding of the weight's dtype), however small weights are."""
    weight = (jax.random.normal(KEY, (8, 64)) * size).astype(weight_dtype)
    small = nn.Quantized(weight, dtype)
    assert small.dtype == weight_dtype
    assert small.get().dtype == weight_dtype
    whole, near = (np.asarray(each, np.float64) for each in (weight, small.get()))
    info, largest = jnp.finfo(weight_dtype), np.abs(whole).max(1, keepdims=True)
    bound = (1.1 * step / 2 + float(info.eps)) * largest + float(info.smallest_subnormal)
    assert (np.abs(near - whole) <= bound).all()


@pytest.mark.parametrize("layer", [nn.Linear(3, 4, key=KEY), jax.nn.relu])
def test_a_layer_is_no_weight(layer: Any):
    """Adapters stand in the place of an array; the error shows how they are put there."""
    with pytest.raises(ag.UsageError, match=r"(?s)argument `base`.*apply\(lambda w: nn.LoRA"):
        nn.LoRA(layer, 2, key=KEY)
    with pytest.raises(ag.UsageError, match=r"(?s)argument `weight`.*apply\(nn.Quantized\)"):
        nn.Quantized(layer)


@pytest.mark.parametrize("rank", [0, -1, 2.0])
def test_a_rank_is_a_number_from_one_on(rank: Any):
    """No change of rank 0, which would train nothing."""
    with pytest.raises(ag.UsageError, match="rank"):
        nn.LoRA(jnp.ones((3, 4)), rank, key=KEY)
