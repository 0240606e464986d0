"""The models that are trained, their sizes, and parameters and batches that all libraries get."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RATE = 1e-3
Params = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """A model with its sizes.

    Attributes:
        model: which function of a library's module makes it.
        params: draws its parameters: weights are [in, out], kernels [height, width, in, out], and features are
            flattened with channels last.
        batch: draws an input and labels.
        heads: of attention.
    """

    name: str
    model: str
    params: Callable[[np.random.Generator], Params]
    batch: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    heads: int = 0

    def drawn(self) -> tuple[Params, tuple[np.ndarray, np.ndarray]]:
        """Parameters and a batch, the same ones on every call."""
        rng = np.random.default_rng(0)
        return self.params(rng), self.batch(rng)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def dense(rng: np.random.Generator, into: int, out: int) -> Params:
    return {"w": normal(rng, into, out) * np.float32(into**-0.5), "b": np.zeros(out, np.float32)}


def conv(rng: np.random.Generator, into: int, out: int) -> Params:
    return {"w": normal(rng, 5, 5, into, out) * np.float32((25 * into) ** -0.5), "b": np.zeros(out, np.float32)}


def norm(size: int) -> Params:
    return {"w": np.ones(size, np.float32), "b": np.zeros(size, np.float32)}


def mlp(name: str, batch: int, *sizes: int) -> Size:
    def params(rng: np.random.Generator) -> Params:
        return {"layers": [dense(rng, *each) for each in itertools.pairwise(sizes)]}

    return Size(name, "mlp", params, lambda rng: (normal(rng, batch, sizes[0]), rng.integers(0, sizes[-1], batch)))


def lenet(name: str, batch: int, side: int, channels: int) -> Size:
    """LeNet-5 with ReLU and max pooling, for images [batch, side, side, channels]."""
    left = (side - 12) // 4  # each convolution takes 4, each pooling halves

    def params(rng: np.random.Generator) -> Params:
        convs = [conv(rng, channels, 6), conv(rng, 6, 16)]
        sizes = (16 * left * left, 120, 84, 10)
        return {"convs": convs, "layers": [dense(rng, *each) for each in itertools.pairwise(sizes)]}

    return Size(
        name, "lenet", params, lambda rng: (normal(rng, batch, side, side, channels), rng.integers(0, 10, batch))
    )


def channels_first(params: Params) -> Params:
    """LeNet's parameters for features that are flattened channel by channel."""
    first, *rest = params["layers"]
    side = int((len(first["w"]) // 16) ** 0.5)
    w = first["w"].reshape(side * side, 16, -1).swapaxes(0, 1).reshape(first["w"].shape)
    return params | {"layers": [first | {"w": w}, *rest]}


def lstm(name: str, batch: int, time: int, into: int, hidden: int) -> Size:
    """One layer; what it says at the end is classified."""

    def params(rng: np.random.Generator) -> Params:
        scale = np.float32(hidden**-0.5)
        cell = {"wi": normal(rng, into, 4 * hidden) * scale, "wh": normal(rng, hidden, 4 * hidden) * scale}
        return {"cell": cell | {"b": np.zeros(4 * hidden, np.float32)}, "head": dense(rng, hidden, 10)}

    return Size(name, "lstm", params, lambda rng: (normal(rng, batch, time, into), rng.integers(0, 10, batch)))


def transformer(name: str, layers: int, batch: int, time: int, size: int, heads: int, tokens: int = 256) -> Size:
    """A decoder of `layers` blocks that normalise first, with a table of positions, for the next of 256 tokens."""

    def block(rng: np.random.Generator) -> Params:
        attention = {each: dense(rng, size, size) for each in ("q", "k", "v", "o")}
        mlp = {"up": dense(rng, size, 4 * size), "down": dense(rng, 4 * size, size)}
        return attention | mlp | {"norm1": norm(size), "norm2": norm(size)}

    def params(rng: np.random.Generator) -> Params:
        tables = {"tokens": normal(rng, tokens, size), "places": normal(rng, time, size)}
        blocks = [block(rng) for _ in range(layers)]
        return tables | {"blocks": blocks, "norm": norm(size), "head": dense(rng, size, tokens)}

    def windows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        found = rng.integers(0, tokens, (batch, time + 1))
        return found[:, :-1], found[:, 1:]

    return Size(name, "transformer", params, windows, heads)


SIZES = (
    mlp("MLP 64-128-10, batch 32", 32, 64, 128, 10),
    mlp("MLP 784-256-256-10, batch 64", 64, 784, 256, 256, 10),
    mlp("MLP 784-1024-1024-10, batch 256", 256, 784, 1024, 1024, 10),
    lenet("LeNet 28x28x1, batch 32", 32, 28, 1),
    lenet("LeNet 32x32x3, batch 128", 128, 32, 3),
    lstm("LSTM 28 steps, 64 units, batch 16", 16, 28, 28, 64),
    lstm("LSTM 100 steps, 128 units, batch 32", 32, 100, 32, 128),
    transformer("12-layer transformer, 64 wide, 4 x 64 tokens", 12, 4, 64, 64, 4),
    transformer("12-layer transformer, 192 wide, 4 x 128 tokens", 12, 4, 128, 192, 6),
)
