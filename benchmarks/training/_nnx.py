"""Flax NNX: its layers, `nnx.Optimizer` and `nnx.jit`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from ._size import RATE, Params, Size
from ._trainer import Trainer, cross_entropy, planned


def with_arrays(layer: Any, **arrays: Any) -> Any:
    """The layer, with other arrays."""
    for name, array in arrays.items():
        getattr(layer, name)[...] = jnp.asarray(array)
    return layer


def dense(p: Params) -> nnx.Linear:
    return with_arrays(nnx.Linear(*p["w"].shape, rngs=nnx.Rngs(0)), kernel=p["w"], bias=p["b"])


class MLP(nnx.Module):
    """Linear layers."""

    def __init__(self, params: Params) -> None:
        self.layers = nnx.List([dense(p) for p in params["layers"]])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        *hidden, last = self.layers
        for layer in hidden:
            x = nnx.relu(layer(x))
        return last(x)


def conv(p: Params) -> nnx.Conv:
    *_, into, out = p["w"].shape
    return with_arrays(nnx.Conv(into, out, (5, 5), padding="VALID", rngs=nnx.Rngs(0)), kernel=p["w"], bias=p["b"])


class LeNet(nnx.Module):
    """Convolutions, pooling and linear layers."""

    def __init__(self, params: Params) -> None:
        self.convs = nnx.List([conv(p) for p in params["convs"]])
        self.mlp = MLP(params)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits for [batch, height, width, channels]."""
        for layer in self.convs:
            x = nnx.max_pool(nnx.relu(layer(x)), (2, 2), (2, 2))
        return self.mlp(x.reshape(len(x), -1))


class Classifier(nnx.Module):
    """An LSTM and a linear layer for what it says at the end."""

    def __init__(self, params: Params) -> None:
        cell = params["cell"]
        layer = nnx.OptimizedLSTMCell(cell["wi"].shape[0], cell["wh"].shape[0], rngs=nnx.Rngs(0))
        with_arrays(layer.dense_i, kernel=cell["wi"])
        with_arrays(layer.dense_h, kernel=cell["wh"], bias=cell["b"])
        self.rnn = nnx.RNN(layer)
        self.head = dense(params["head"])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits for [batch, time, features]."""
        return self.head(jnp.asarray(self.rnn(x))[:, -1])


def norm(p: Params) -> nnx.LayerNorm:
    return with_arrays(nnx.LayerNorm(len(p["w"]), epsilon=1e-5, rngs=nnx.Rngs(0)), scale=p["w"], bias=p["b"])


class Block(nnx.Module):
    """A block of a decoder."""

    def __init__(self, p: Params, heads: int) -> None:
        size = len(p["norm1"]["w"])
        self.attention = nnx.MultiHeadAttention(heads, size, decode=False, rngs=nnx.Rngs(0))
        for name, each in (("query", "q"), ("key", "k"), ("value", "v")):
            kernel = p[each]["w"].reshape(size, heads, -1)
            with_arrays(getattr(self.attention, name), kernel=kernel, bias=p[each]["b"].reshape(heads, -1))
        with_arrays(self.attention.out, kernel=p["o"]["w"].reshape(heads, -1, size), bias=p["o"]["b"])
        self.norm1, self.norm2 = norm(p["norm1"]), norm(p["norm2"])
        self.up, self.down = dense(p["up"]), dense(p["down"])

    def __call__(self, x: jax.Array) -> jax.Array:
        """The result for [batch, time, size]."""
        x = x + self.attention(self.norm1(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """A decoder."""

    def __init__(self, params: Params, heads: int) -> None:
        self.tokens = with_arrays(nnx.Embed(*params["tokens"].shape, rngs=nnx.Rngs(0)), embedding=params["tokens"])
        self.places = nnx.Param(jnp.asarray(params["places"]))
        self.blocks = nnx.List([Block(p, heads) for p in params["blocks"]])
        self.norm = norm(params["norm"])
        self.head = dense(params["head"])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits for [batch, time] tokens."""
        x = self.tokens(x) + self.places[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def trainer(size: Size) -> Trainer:
    params, (x, y) = size.drawn()
    if size.model == "transformer":
        model = Transformer(params, size.heads)
    else:
        model = {"mlp": MLP, "lenet": LeNet, "lstm": Classifier}[size.model](params)
    x, y = jnp.asarray(x), jnp.asarray(y)
    optimizer = nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    def update(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(x), y))(model)
        optimizer.update(model, grads)
        return loss

    step = nnx.jit(update, donate_argnums=(0, 1))
    peak_bytes, seconds = planned(step, model, optimizer, x, y)
    return Trainer(lambda: step(model, optimizer, x, y), lambda: peak_bytes, seconds)
