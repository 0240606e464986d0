"""What holds of every layer: leading axes, dtypes, empty batches, errors that say where, files, reprs."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import nn

KEY = jax.random.key(0)

# A layer and the axes of an input that is one example.
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(3, 4, key=KEY), (3,)),
    "LinearGeneral": (lambda: nn.LinearGeneral((2, 3), (4, 5), key=KEY), (2, 3)),
    "Einsum": (lambda: nn.Einsum("...ij,jk->...ki", (3, 4), (4, 2), key=KEY), (2, 3)),
    "MLP": (lambda: nn.MLP(3, 2, 4, 2, key=KEY), (3,)),
    "Lambda": (lambda: nn.Lambda(jnp.tanh), (3,)),
    "Identity": (lambda: nn.Identity(3, key=KEY), (3,)),
    "Dropout": (lambda: nn.Dropout(0.5, inference=True), (3,)),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.5, inference=True), (3,)),
    "PReLU": (lambda: nn.PReLU(3, num_spatial_dims=1), (3, 2)),
    "LayerNorm": (lambda: nn.LayerNorm((2, 3)), (2, 3)),
    "RMSNorm": (lambda: nn.RMSNorm(3, use_bias=True), (3,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (4, 2, 3)),
    "InstanceNorm": (lambda: nn.InstanceNorm(4, channelwise_affine=True), (4, 2, 3)),
    "BatchNorm": (lambda: nn.BatchNorm(4, inference=True, num_spatial_dims=1), (4, 3)),
    "WeightNorm": (lambda: nn.WeightNorm(nn.Conv1d(3, 4, 2, key=KEY)), (3, 5)),
    "SpectralNorm": (lambda: nn.SpectralNorm(nn.Conv1d(3, 4, 2, key=KEY), inference=True, key=KEY), (3, 5)),
    "Conv": (lambda: nn.Conv(2, 3, 4, 2, (2, 1), [(1, 0), (0, 1)], groups=1, key=KEY), (3, 5, 4)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 2, 3, "same", key=KEY), (3, 5)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2, padding="valid", padding_mode="circular", key=KEY), (2, 3, 4)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 1, key=KEY), (1, 2, 3, 2)),
    "SeparableConv": (lambda: nn.SeparableConv(1, 3, 4, 2, multiplier=2, key=KEY), (3, 5)),
    "ConvTranspose": (lambda: nn.ConvTranspose(2, 2, 3, 2, 2, "same", key=KEY), (2, 3, 4)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 2, groups=2, key=KEY), (4, 3)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(1, 2, 2, padding="valid", key=KEY), (1, 3, 3)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(1, 2, 1, key=KEY), (1, 2, 3, 2)),
    "Pool": (lambda: nn.Pool(0.0, jax.lax.add, 1, 2, dilation=2), (2, 5)),
    "MaxPool": (lambda: nn.MaxPool(1, 3, 2, 1), (2, 5)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), (2, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2, use_ceil=True), (2, 5, 4)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (2, 3, 4)),
    "AvgPool": (lambda: nn.AvgPool(1, 3, 2, [(1, 0)]), (2, 5)),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), (5,)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2, use_ceil=True), (2, 5, 4)),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), (2, 3, 4)),
    "AdaptivePool": (lambda: nn.AdaptivePool(3, 1, jnp.max), (2, 4)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(3), (2, 4)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (4, 5)),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), (2, 4, 3)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(2), (2, 4)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(3), (4, 5)),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), (2, 4, 3)),
    "Bidirectional": (lambda: nn.Bidirectional(nn.RNNCell(3, 4, key=KEY), nn.GRUCell(3, 2, key=KEY)), (5, 3)),
    "Recurrent": (lambda: nn.Recurrent(nn.LSTMCell(3, 4, key=KEY), reverse=True), (5, 3)),
    "RNN": (lambda: nn.RNN(3, 4, key=KEY), (5, 3)),
    "GRU": (lambda: nn.GRU(3, 4, use_bias=False, key=KEY), (5, 3)),
    "LSTM": (lambda: nn.LSTM(3, 4, 2, bidirectional=True, dropout=0, key=KEY), (5, 3)),
    "LinearRecurrentUnit": (lambda: nn.LinearRecurrentUnit(3, 4, key=KEY), (5, 3)),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(
            4, 8, output_size=6, num_kv_heads=2, is_causal=True, rotary=nn.RotaryPositionalEmbedding(2), key=KEY
        ),
        (5, 8),
    ),
    "TransformerBlock": (lambda: nn.TransformerBlock(2, 4, norm=nn.RMSNorm, num_kv_heads=1, key=KEY), (5, 4)),
    "RotaryPositionalEmbedding": (lambda: nn.RotaryPositionalEmbedding(4), (5, 4)),
    "SinusoidalPositionalEmbedding": (lambda: nn.SinusoidalPositionalEmbedding(4), (5, 4)),
    "Residual": (lambda: nn.Residual(jnp.tanh, nn.Linear(3, 3, key=KEY), jax.nn.relu), (3,)),
    "Stack": (lambda: nn.Stack(lambda key: nn.TransformerBlock(2, 4, key=key), 3, key=KEY), (5, 4)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(3, 4, key=KEY), jnp.tanh, nn.Dropout(inference=True)), (3,)),
}
# Layers with other inputs than one floating-point array; they have tests of their own.
OTHERS = set(
    "AbstractAdapter LoRA Quantized Precision AbstractCell Bilinear Embedding GRUCell KVCache LSTMCell RNNCell".split()
)


def filled(name: str) -> Any:
    """A layer with random parameters; drawing them as it does itself would take most of the tests' time."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(LAYERS[name][0])

    def fill(path: Any, leaf: Any) -> Any:
        is_variance = "var" in jax.tree_util.keystr(path)
        return jnp.asarray(rng.uniform(0.5 if is_variance else -1, 1, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def test_every_layer_is_listed() -> None:
    """A new layer is held to what follows."""
    classes = {name for name, each in vars(nn).items() if inspect.isclass(each) and issubclass(each, ag.Module)}
    assert classes == set(LAYERS) | OTHERS


@pytest.mark.parametrize("name", LAYERS)
def test_leading_axes_are_batch_axes(name: str) -> None:
    """Two leading axes give what two `vmap`s give; a batch of none gives none; one dtype is kept."""
    layer, shape = filled(name), LAYERS[name][1]
    xs = np.random.default_rng(1).normal(size=(2, 3, *shape)).astype(np.float32)
    at_once, one_by_one = jax.jit(lambda layer, xs: (layer(xs), jax.vmap(jax.vmap(layer))(xs)))(layer, xs)
    for one, other in zip(jax.tree.leaves(at_once), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    of_none = jax.tree.leaves(jax.eval_shape(layer, jax.ShapeDtypeStruct((0, *shape), jnp.float32)))
    for none, one in zip(of_none, jax.tree.leaves(at_once), strict=True):
        assert none.shape == (0, *one.shape[2:])
        assert none.dtype == one.dtype
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        with jax.numpy_dtype_promotion("strict"):
            outs = jax.tree.leaves(jax.eval_shape(ag.cast(layer, dtype), jax.ShapeDtypeStruct(shape, dtype)))
        for half, one in zip(outs, jax.tree.leaves(at_once), strict=True):
            assert half.dtype == dtype or jnp.iscomplexobj(one)
            assert half.shape == one.shape[2:]


@pytest.mark.parametrize("name", LAYERS)
def test_ranks_are_equal_where_arrays_meet(name: str) -> None:
    """Layers run where JAX is told to refuse arrays of different ranks, with and without leading axes."""
    layer, shape = jax.eval_shape(LAYERS[name][0]), LAYERS[name][1]
    with jax.numpy_rank_promotion("raise"):
        for lead in ((), (2,), (2, 3)):
            jax.eval_shape(lambda layer, x: layer(x), layer, jax.ShapeDtypeStruct((*lead, *shape), jnp.float32))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_goes_through_a_file(name: str, tmp_path: Path) -> None:
    """What is saved and loaded is the layer; its repr is one call of its class."""
    layer = filled(name)
    ag.save(tmp_path / "layer.safetensors", layer)
    assert ag.load(tmp_path / "layer.safetensors", layer) == layer
    assert repr(layer).startswith(f"{name}(")


NO_CHANNELS = "Lambda Identity Dropout AlphaDropout Einsum"  # these take what any function would take


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in NO_CHANNELS and "Pool" not in name])
def test_a_wrong_shape_is_told_with_its_place(name: str) -> None:
    """The error is raised while tracing, names the layer in the model, and says what was got and wanted."""
    layer, shape = jax.eval_shape(LAYERS[name][0]), LAYERS[name][1]

    class Model(ag.Module):
        parts: dict[str, Any]

        def __call__(self, x: Any) -> Any:
            return self.parts["here"](x)

    model = Model({"here": layer})
    wrong = jax.ShapeDtypeStruct((5, *(size + 6 for size in shape)), jnp.float32)
    with pytest.raises(nn.InputError) as caught:
        jax.eval_shape(lambda model, x: jax.vmap(model)(x), model, wrong)
    assert caught.value.place.startswith("model.parts['here']")
    assert caught.value.got == f"f32[{','.join(str(size + 6) for size in shape)}]"
    assert caught.value.wanted.startswith("f32[...,")


def test_too_few_axes_are_told() -> None:
    """A scalar, and an image without channels, are refused as other shapes are."""
    with pytest.raises(nn.InputError, match=re_of("got      f32[]   (wanted f32[...,3])")):
        nn.Linear(3, 4, key=KEY)(1.0)
    with pytest.raises(nn.InputError, match="num_spatial_dims="):
        nn.GroupNorm(2, 4)(jnp.ones((4, 4)))


def re_of(text: str) -> str:
    """A pattern of just that text."""
    return "".join(f"\\{c}" if c in "[]().*" else c for c in text)


def test_indices_must_be_integers() -> None:
    """A table is not indexed by floating-point numbers."""
    table = nn.Embedding(5, 3, key=KEY)
    with pytest.raises(nn.InputError, match="the input must be integers"):
        table(jnp.ones(3))
    np.testing.assert_array_equal(table(3), table.weight[3])
    np.testing.assert_allclose(table.attend(jnp.ones(3)), table.weight.sum(1), rtol=1e-6)


def test_scalar_features_have_no_axis() -> None:
    """As in Equinox, "scalar" stands for a size of 1 without an axis."""
    assert nn.Linear("scalar", 4, key=KEY)(jnp.ones(5)).shape == (5, 4)
    assert nn.Linear(4, "scalar", key=KEY)(jnp.ones((5, 4))).shape == (5,)


@pytest.mark.parametrize("make", [
    lambda init: nn.Linear(200, 50, init=init, key=KEY),
    lambda init: nn.Conv1d(40, 50, 5, init=init, key=KEY),
    lambda init: nn.ConvTranspose1d(40, 50, 5, init=init, key=KEY),
    lambda init: nn.LinearGeneral((20, 10), (5, 10), init=init, key=KEY),
])  # fmt: skip
def test_initializers_of_jax_see_what_comes_in(make: Callable[[Any], Any]) -> None:
    """`fan_in` of an initializer of JAX's is the number of inputs of one output, however the weight lies in memory."""
    weight = make(jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")).weight
    fan_in = 200
    assert abs(float(weight.var()) * fan_in - 1) < 0.1


def test_initializers_are_drawn_in_the_layer_s_dtype() -> None:
    """Parameters have the dtype that is asked for, complex ones too, and by default JAX's."""
    for dtype in (jnp.bfloat16, jnp.complex64):
        layer = nn.Linear(3, 4, dtype=dtype, bias_init=jax.nn.initializers.ones, key=KEY)
        assert layer.weight.dtype == layer.bias.dtype == dtype
        assert layer.bias.tolist() == [1.0] * 4
    with jax.enable_x64(True):
        assert nn.Linear(3, 4, key=KEY).weight.dtype == jnp.float64
        assert nn.BatchNorm(3).running_var.value.dtype == jnp.float64


def test_default_weights_fill_pytorch_s_range() -> None:
    """Weights and biases are uniform in ±1 / sqrt(fan_in)."""
    layer = nn.Linear(25, 400, key=KEY)
    for parameter in (layer.weight, layer.bias):
        assert 0.19 < float(abs(parameter).max()) <= 0.2


def test_no_inputs_give_the_bias() -> None:
    """A layer of no features is the limit of small ones."""
    layer = nn.Linear(0, 3, key=KEY)
    np.testing.assert_array_equal(layer(jnp.ones((2, 0))), jnp.broadcast_to(layer.bias, (2, 3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.GroupNorm(3, 4), "a divisor of the 4 channels"),
        (lambda: nn.Conv1d(3, 4, 2, groups=2, key=KEY), "a divisor of in_channels=3 and out_channels=4"),
        (lambda: nn.Conv2d(3, 4, (2, 2, 2), key=KEY), "one for each of 2 axes"),
        (lambda: nn.Conv2d(3, 4, 2, padding="some", key=KEY), "write padding='same'"),
        (lambda: nn.Conv2d(3, 4, 2, padding_mode="reflekt", key=KEY), "write padding_mode='reflect'"),
        (lambda: nn.MaxPool1d(2, padding=2), "less than the window"),
        (lambda: nn.Dropout(1.5), "a probability from 0 to 1"),
        (lambda: nn.Einsum("...i,io", (3, 4), key=KEY), "'...i,io->...o'"),
    ],
)
def test_options_that_do_not_fit_are_refused(make: Callable[[], Any], message: str) -> None:
    """The constructor says what an argument can be."""
    with pytest.raises(ag.UsageError, match=re_of(message)):
        make()


@pytest.mark.parametrize("name", ["MultiheadAttention", "GRU", "LinearRecurrentUnit"])
def test_the_optimiser_keeps_what_layers_compute(name: str) -> None:
    """`ag.jit` gives the results and gradients of `jax.jit`."""
    layer = filled(name)
    xs = np.random.default_rng(1).normal(size=(2, *LAYERS[name][1])).astype(np.float32)

    def total(layer: Any, xs: Any) -> Any:
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(layer(xs)) if not jnp.iscomplexobj(leaf))

    wanted = jax.jit(jax.value_and_grad(total))(layer, xs)
    got = ag.jit(jax.value_and_grad(total))(layer, xs)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * max(1.0, float(jnp.abs(other).max())))


@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm], ids=lambda make: make.__name__)
def test_half_precision_is_normalised_in_single(make: Callable[[int], Any]) -> None:
    """Squares that float16 cannot hold are no trouble, and the result has the input's dtype."""
    x = jnp.array([1000.0, -1000.0, 500.0, -500.0], jnp.float16)
    out = make(4)(x)
    assert out.dtype == jnp.float16
    np.testing.assert_allclose(out, np.asarray(x, np.float32) / 790.57, rtol=2e-3)
