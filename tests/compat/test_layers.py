"""`aerogel.compat.equinox.nn` against Equinox itself: arguments, attributes, first parameters, results, gradients."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel.compat import equinox as ours

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # both warn of what Equinox has deprecated

KEY = jax.random.key(0)
UPPER = np.tril(np.ones((5, 5), bool))
Make = Callable[[Any], Any]


def rotated(nn: Any) -> Any:
    """What Equinox's documentation shows for `process_heads`."""
    rope = nn.RotaryPositionalEmbedding(4)

    def process(queries: jax.Array, keys: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return jax.vmap(rope, 1, 1)(queries), jax.vmap(rope, 1, 1)(keys), values

    return process


# How to make the layer, the shape of one example, and how to call it where that is not `layer(x)`.
CASES: dict[str, tuple[Make, tuple[int, ...]] | tuple[Make, tuple[int, ...], Callable[[Any, Any, Any], Any]]] = {
    "Linear": (lambda nn: nn.Linear(3, 4, key=KEY), (3,)),
    "Linear, by position": (lambda nn: nn.Linear(3, "scalar", False, jnp.float16, key=KEY), (3,)),
    "Linear, of a scalar": (lambda nn: nn.Linear("scalar", 2, key=KEY), ()),
    "Identity": (lambda nn: nn.Identity(3, a=2), (3,)),
    "Lambda": (lambda nn: nn.Lambda(jnp.tanh), (3,)),
    "Embedding": (lambda nn: nn.Embedding(5, 3, key=KEY), (), lambda nn, layer, x: layer(jnp.abs(x * 2).astype(int))),
    "Embedding, given": (lambda nn: nn.Embedding(weight=jnp.ones((2, 3))), (), lambda nn, layer, x: layer(1) * x),
    "MLP": (lambda nn: nn.MLP(3, "scalar", 5, 2, jnp.tanh, jnp.exp, key=KEY), (3,)),
    "MLP, of each number": (lambda nn: nn.MLP(3, 2, 4, 1, final_activation=lambda x: x / x.sum(), key=KEY), (3,)),
    "MLP, slopes": (lambda nn: nn.MLP(3, 2, 4, 2, nn.PReLU(), nn.PReLU(), False, False, key=KEY), (3,)),
    "MLP, scan": (lambda nn: nn.MLP(3, 2, 4, 3, nn.PReLU(), scan=True, key=KEY), (3,)),
    "MLP, no hidden layer": (lambda nn: nn.MLP(3, 2, 4, 0, final_activation=jnp.tanh, key=KEY), (3,)),
    "Conv": (lambda nn: nn.Conv(2, 4, 6, (3, 2), 2, ((1, 0), (2, 1)), (1, 2), 2, True, "CIRCULAR", key=KEY), (4, 6, 7)),
    "Conv1d": (lambda nn: nn.Conv1d(2, 3, 4, 3, "SAME", key=KEY), (2, 8)),
    "Conv2d": (lambda nn: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect", use_bias=False, key=KEY), (2, 4, 5)),
    "Conv3d": (lambda nn: nn.Conv3d(2, 3, 2, padding=(1, 0, 1), key=KEY), (2, 3, 4, 3)),
    "ConvTranspose": (
        lambda nn: nn.ConvTranspose(2, 4, 6, (3, 2), (2, 3), ((1, 0), (0, 1)), 1, (1, 2), 2, key=KEY),
        (4, 3, 4),
    ),
    "ConvTranspose1d": (lambda nn: nn.ConvTranspose1d(2, 3, 3, 2, 1, 1, key=KEY), (2, 5)),
    "ConvTranspose2d": (lambda nn: nn.ConvTranspose2d(2, 3, 3, (2, 4), padding="SAME_LOWER", key=KEY), (2, 3, 4)),
    "ConvTranspose2d, around": (
        lambda nn: nn.ConvTranspose2d(2, 3, 5, 2, padding="SAME", padding_mode="CIRCULAR", key=KEY),
        (2, 3, 4),
    ),
    "ConvTranspose3d": (lambda nn: nn.ConvTranspose3d(2, 3, 2, use_bias=False, padding="valid", key=KEY), (2, 2, 3, 2)),
    "Pool": (lambda nn: nn.Pool(0.0, jax.lax.add, 2, (2, 3), padding=((1, 0), (2, 1))), (2, 4, 5)),
    "AvgPool1d": (lambda nn: nn.AvgPool1d(3), (2, 7)),
    "AvgPool2d": (lambda nn: nn.AvgPool2d((3, 4), 2, 1, use_ceil=True), (2, 6, 7)),
    "AvgPool3d": (lambda nn: nn.AvgPool3d(2, 2), (2, 4, 4, 5)),
    "MaxPool1d": (lambda nn: nn.MaxPool1d(3, 2, 1), (2, 7)),
    "MaxPool2d": (lambda nn: nn.MaxPool2d(3, 3, use_ceil=True), (2, 7, 8)),
    "MaxPool3d": (lambda nn: nn.MaxPool3d(2), (2, 3, 4, 3)),
    "AdaptivePool": (lambda nn: nn.AdaptivePool((2, 3), 2, jnp.median), (2, 5, 8)),
    "AdaptiveAvgPool1d": (lambda nn: nn.AdaptiveAvgPool1d(3), (2, 7)),
    "AdaptiveAvgPool2d": (lambda nn: nn.AdaptiveAvgPool2d((3, 2)), (2, 6, 5)),
    "AdaptiveAvgPool3d": (lambda nn: nn.AdaptiveAvgPool3d(2), (1, 4, 3, 2)),
    "AdaptiveMaxPool1d": (lambda nn: nn.AdaptiveMaxPool1d(2), (2, 7)),
    "AdaptiveMaxPool2d": (lambda nn: nn.AdaptiveMaxPool2d(3), (2, 6, 5)),
    "AdaptiveMaxPool3d": (lambda nn: nn.AdaptiveMaxPool3d(2), (1, 4, 3, 2)),
    "LayerNorm": (lambda nn: nn.LayerNorm((2, 3), 1e-3), (2, 3)),
    "LayerNorm, by position": (lambda nn: nn.LayerNorm(3, 1e-5, False, True, jnp.float16), (3,)),
    "LayerNorm, deprecated": (lambda nn: nn.LayerNorm(3, elementwise_affine=False), (3,)),
    "RMSNorm": (lambda nn: nn.RMSNorm(3), (3,)),
    "GroupNorm": (lambda nn: nn.GroupNorm(2, 6), (6, 2, 3)),
    "GroupNorm, of vectors": (lambda nn: nn.GroupNorm(2, channelwise_affine=False), (4,)),
    "GRUCell": (lambda nn: nn.GRUCell(3, 4, key=KEY), (3,), lambda nn, cell, x: cell(x, jnp.full(4, x[0]))),
    "GRUCell, no bias": (lambda nn: nn.GRUCell(3, 3, False, key=KEY), (3,), lambda nn, cell, x: cell(x, hidden=2 * x)),
    "LSTMCell": (lambda nn: nn.LSTMCell(3, 3, key=KEY), (3,), lambda nn, cell, x: cell(input=x, hidden=(2 * x, 3 * x))),
    "LSTMCell, no bias": (lambda nn: nn.LSTMCell(3, 3, False, key=KEY), (3,), lambda nn, cell, x: cell(x, (x, x))),
    "MultiheadAttention": (
        lambda nn: nn.MultiheadAttention(2, 6, qk_size=4, vo_size=5, use_key_bias=True, dropout_p=0.25, key=KEY),
        (5, 6),
        lambda nn, layer, x: layer(x, 2 * x, jnp.sin(x), UPPER, key=KEY),
    ),
    "MultiheadAttention, heads": (
        lambda nn: nn.MultiheadAttention(2, 6, 6, 6, 3, 4, 4, True, True, True, True, 0.5, True, key=KEY),
        (5, 6),
        lambda nn, layer, x: layer(x, x, x, np.stack([UPPER, UPPER.T]), process_heads=rotated(nn)),
    ),
    "RotaryPositionalEmbedding": (lambda nn: nn.RotaryPositionalEmbedding(6), (5, 6)),
    "PReLU": (lambda nn: nn.PReLU(0.1), (3,)),
    "Dropout": (lambda nn: nn.Dropout(0.3), (8,), lambda nn, layer, x: layer(x, key=KEY)),
    "Dropout, deprecated": (lambda nn: nn.Dropout(0.3, deterministic=True), (3,)),
    "Dropout, by an array": (lambda nn: nn.Dropout(jnp.float32(0.3)), (8,), lambda nn, layer, x: layer(x, key=KEY)),
    "WeightNorm": (lambda nn: nn.WeightNorm(nn.Linear(3, 4, key=KEY), axis=None), (3,)),
    "WeightNorm, of a convolution": (lambda nn: nn.WeightNorm(nn.Conv1d(2, 3, 2, key=KEY)), (2, 5)),
    "Sequential": (
        lambda nn: nn.Sequential([nn.Linear(3, 4, key=KEY), nn.Lambda(jnp.tanh), nn.Dropout(0.5), nn.RMSNorm(4)]),
        (3,),
        lambda nn, layer, x: layer[1:](layer[0](x), key=KEY),
    ),
}


def arrays(layer: Any) -> list[jax.Array]:
    """The arrays of a layer of either library."""
    return jax.tree.leaves(equinox.filter(layer, equinox.is_array))


@pytest.mark.usefixtures("quick_to_compile")
@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_equinox_s(name: str) -> None:
    """From one key the same parameters; the same result, and the same gradient by parameters and input."""
    make, shape, *call = CASES[name]
    called = call[0] if call else lambda nn, layer, x: layer(x)
    layers = {nn: make(nn) for nn in (equinox.nn, ours.nn)}
    theirs, mine = map(arrays, layers.values())
    assert [x.shape for x in mine] == [x.shape for x in theirs]
    assert all(map(np.array_equal, mine, theirs))

    def loss(nn: Any, values: list[jax.Array], x: jax.Array) -> tuple[jax.Array, Any]:
        held, rest = equinox.partition(layers[nn], equinox.is_array)
        layer = equinox.combine(jax.tree.unflatten(jax.tree.structure(held), values), rest)
        out = called(nn, layer, x)
        return sum(jnp.sum(jnp.cos(y)).astype(jnp.float32) for y in jax.tree.leaves(out)), out  # type: ignore[return-value]

    xs = jax.random.normal(KEY, shape), [x + 0.1 for x in theirs]
    wanted, got = jax.jit(lambda x, values: [jax.value_and_grad(loss, (1, 2), True)(nn, values, x) for nn in layers])(
        *xs
    )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        atol = 2e-3 if other.dtype == jnp.float16 else 3e-6
        np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), rtol=2e-5, atol=atol)


def is_plain(value: Any) -> bool:
    """Whether it is a number, a name, None, or a tuple of these."""
    return all(map(is_plain, value)) if isinstance(value, tuple) else isinstance(value, str | int | float | None)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_has_the_attributes_of_equinox_s(name: str) -> None:
    """Fields with their values. The padding of a `Conv` is in small letters here."""
    theirs, mine = CASES[name][0](equinox.nn), CASES[name][0](ours.nn)
    assert [f.name for f in dataclasses.fields(theirs) if not hasattr(mine, f.name) and f.name[0] != "_"] == []
    values = {f.name: getattr(theirs, f.name) for f in dataclasses.fields(theirs) if f.name[0] != "_"}
    for field, value in ((field, value) for field, value in values.items() if is_plain(value)):
        is_small = field == "padding_mode" and isinstance(mine, ours.nn.Conv)
        assert getattr(mine, field) == (value.lower() if is_small else value)


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """What a function takes by name."""
    found = inspect.signature(function).parameters
    return {name: p for name, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


@pytest.mark.parametrize("name", sorted({n for n in vars(equinox.nn) if n[0].isupper()} - {"StatefulLayer"}))
def test_a_layer_takes_the_arguments_of_equinox_s(name: str) -> None:
    """By the same names, in the same order, with the same defaults; so does its call."""
    theirs, mine = getattr(equinox.nn, name), getattr(ours.nn, name)
    calls = [(theirs, mine), (theirs.__call__, mine.__call__)] if callable(theirs) else [(theirs, mine)]
    for pair in calls:
        wanted, got = map(parameters_of, pair)
        assert [k for k in got if k in wanted] == list(wanted)
        plain = {k: p.default for k, p in wanted.items() if isinstance(p.default, str | int | float | None)}
        assert {k: got[k].default for k in plain} == plain
