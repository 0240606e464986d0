"""Layers in bfloat16 and float16 beside themselves in float32: sums are taken in float32, and rounded once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel import nn

KEY = jax.random.key(0)
UNITS = {jnp.bfloat16: 2**-8, jnp.float16: 2**-11}
# A layer, the shape of its input, and how many roundings may stand one after the other in it.
CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(8, 4, key=KEY), (2048, 8), 1),
    "linear-general": (lambda: nn.LinearGeneral(8, (2, 2), key=KEY), (2048, 8), 1),
    "einsum": (lambda: nn.Einsum("...i,io->...o", (8, 4), (4,), key=KEY), (2048, 8), 1),
    "conv": (lambda: nn.Conv1d(2, 4, 3, key=KEY), (8, 2, 300), 1),
    "conv-transpose": (lambda: nn.ConvTranspose1d(2, 4, 3, key=KEY), (8, 2, 300), 1),
    "prelu": (nn.PReLU, (2048,), 1),
    "avg-pool": (lambda: nn.AvgPool1d(256), (4, 512), 1),
    "adaptive-pool": (lambda: nn.AdaptiveAvgPool2d(1), (4, 2, 30, 30), 1),
    "rnn": (lambda: nn.RNN(4, 8, key=KEY), (2, 100, 4), 2),
    "gru": (lambda: nn.GRU(4, 8, key=KEY), (2, 100, 4), 2),
    "lstm": (lambda: nn.LSTM(4, 8, key=KEY), (2, 100, 4), 2),
}


@jax.jit
def results(layer: Any, x: Any, along: Any) -> dict[str, Any]:
    """What the layer gives, and the gradient of what it gives along some direction."""

    def first(layer: Any, x: Any) -> Any:
        out = layer(x)
        return out[0] if isinstance(out, tuple) else out

    out, back = jax.vjp(first, layer, x)
    grads = back(along[: out.size].reshape(out.shape).astype(out.dtype))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path((out, grads))}


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_rounded_once(name: str, dtype: Any) -> None:
    """Results and gradients are off by a few roundings, however much is added up; each has the dtype it should."""
    make, shape, roundings = CASES[name]
    layer = jax.tree.map(lambda a: a.astype(dtype), make())
    keys = jax.random.split(jax.random.key(1))
    x = jax.random.normal(keys[0], shape).astype(dtype)
    along = jax.random.normal(keys[1], (2**15,)).astype(dtype)
    wide = jax.tree.map(lambda a: a.astype(jnp.float32), (layer, x, along))
    got, wanted = results(layer, x, along), results(*wide)
    assert got.keys() == wanted.keys()
    assert len(got) >= 2
    for place, array in got.items():
        assert array.dtype == dtype, place
        one, other = np.asarray(array, np.float64), np.asarray(wanted[place], np.float64)
        off = np.sqrt(np.mean((one - other) ** 2) / np.mean(other**2))
        assert off < roundings * UNITS[dtype], (place, off / UNITS[dtype])
