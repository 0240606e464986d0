"""Aerogel: layers, `ag.Optimizer` and `ag.jit`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import aerogel as ag
from aerogel import nn

from ._size import RATE, Params, Size, channels_first
from ._trainer import Trainer, compiled_trainer, cross_entropy


def dense(p: Params) -> nn.Linear:
    layer = nn.Linear(*p["w"].shape, key=jax.random.key(0))
    return ag.at(layer).replace(weight=jnp.asarray(p["w"].T), bias=jnp.asarray(p["b"]))


def mlp(params: Params) -> nn.Sequential:
    *hidden, last = (dense(p) for p in params["layers"])
    return nn.Sequential(*(each for layer in hidden for each in (layer, jax.nn.relu)), last)


def conv(p: Params) -> nn.Conv2d:
    *_, into, out = p["w"].shape
    layer = nn.Conv2d(into, out, 5, key=jax.random.key(0))
    weight = jnp.asarray(p["w"].transpose(3, 2, 0, 1))
    return ag.at(layer).replace(weight=weight, bias=jnp.asarray(p["b"]))


def lenet(params: Params) -> nn.Sequential:
    convs = [each for p in params["convs"] for each in (conv(p), jax.nn.relu, nn.MaxPool2d(2))]
    return nn.Sequential(*convs, nn.Lambda(lambda x: x.reshape(len(x), -1)), mlp(channels_first(params)))


class Classifier(ag.Module):
    """An LSTM and a linear layer for what it says at the end."""

    lstm: nn.LSTM
    head: nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits for [batch, time, features]."""
        return self.head(self.lstm(x)[0][:, -1])


def lstm(params: Params) -> Classifier:
    cell = params["cell"]
    into, hidden = cell["wi"].shape[0], cell["wh"].shape[0]
    layer = nn.LSTM(into, hidden, key=jax.random.key(0))
    weights = {"weight_ih": jnp.asarray(cell["wi"].T), "weight_hh": jnp.asarray(cell["wh"].T)}
    layer = ag.at(layer).layers[0].cell.replace(**weights, bias=jnp.asarray(cell["b"]))
    return Classifier(layer, dense(params["head"]))


class Transformer(ag.Module):
    """A decoder."""

    tokens: nn.Embedding
    places: jax.Array
    blocks: Any
    norm: nn.LayerNorm
    head: nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits for [batch, time] tokens."""
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places)))


def norm(p: Params) -> nn.LayerNorm:
    return ag.at(nn.LayerNorm(len(p["w"]))).replace(weight=jnp.asarray(p["w"]), bias=jnp.asarray(p["b"]))


def block(p: Params, heads: int) -> nn.TransformerBlock:
    new = nn.TransformerBlock(heads, len(p["norm1"]["w"]), is_causal=True, key=jax.random.key(0))
    names = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "output_proj"}
    new = ag.at(new).attention.replace(**{name: dense(p[each]) for each, name in names.items()})
    parts = {"norm_attention": norm(p["norm1"]), "norm_mlp": norm(p["norm2"])}
    return ag.at(new).replace(up=dense(p["up"]), down=dense(p["down"]), **parts)


def transformer(params: Params, heads: int, stacked: bool = False) -> Transformer:
    blocks = [block(p, heads) for p in params["blocks"]]
    tokens = nn.Embedding(*params["tokens"].shape, key=jax.random.key(0))
    return Transformer(
        ag.at(tokens).weight.set(jnp.asarray(params["tokens"])),
        jnp.asarray(params["places"]),
        nn.Stack.from_list(blocks) if stacked else nn.Sequential(*blocks),
        norm(params["norm"]),
        dense(params["head"]),
    )


def trainer(size: Size, *, stacked: bool = False) -> Trainer:
    params, (x, y) = size.drawn()
    if size.model == "transformer":
        model = transformer(params, size.heads, stacked)
    else:
        model = {"mlp": mlp, "lenet": lenet, "lstm": lstm}[size.model](params)
    x, y = jnp.asarray(x), jnp.asarray(y)
    x = jnp.moveaxis(x, -1, 1) if size.model == "lenet" else x

    def loss(model: Any, batch: Any) -> jax.Array:
        x, y = batch
        return cross_entropy(model(x), y)

    @ag.jit(donate="state")
    def step(batch: Any, model: Any, optimizer: ag.Optimizer) -> tuple[jax.Array, Any, ag.Optimizer]:
        return optimizer.step(loss)(model, batch)

    return compiled_trainer(step, (x, y), model, ag.Optimizer(optax.adam(RATE)).init(model))
