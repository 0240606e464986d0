"""Equinox: its layers, for one example each, and `filter_jit`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from equinox import nn

from ._size import RATE, Params, Size, channels_first
from ._trainer import Trainer, compiled_trainer, cross_entropy

KEY = jax.random.key(0)


def with_arrays(layer: Any, **arrays: Any) -> Any:
    """The layer with other arrays."""
    return eqx.tree_at(
        lambda layer: [getattr(layer, name) for name in arrays], layer, [jnp.asarray(each) for each in arrays.values()]
    )


def dense(p: Params) -> nn.Linear:
    return with_arrays(nn.Linear(*p["w"].shape, key=KEY), weight=p["w"].T, bias=p["b"])


def mlp(params: Params) -> nn.Sequential:
    *hidden, last = (dense(p) for p in params["layers"])
    return nn.Sequential([*(each for layer in hidden for each in (layer, nn.Lambda(jax.nn.relu))), last])


def conv(p: Params) -> nn.Conv2d:
    *_, into, out = p["w"].shape
    layer = nn.Conv2d(into, out, 5, key=KEY)
    return with_arrays(layer, weight=p["w"].transpose(3, 2, 0, 1), bias=p["b"].reshape(out, 1, 1))


def lenet(params: Params) -> nn.Sequential:
    convs = [each for p in params["convs"] for each in (conv(p), nn.Lambda(jax.nn.relu), nn.MaxPool2d(2, 2))]
    return nn.Sequential([*convs, nn.Lambda(jnp.ravel), mlp(channels_first(params))])


class Classifier(eqx.Module):
    """An LSTM and a linear layer for what it says at the end."""

    cell: nn.LSTMCell
    head: nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits for [time, features]."""
        zeros = jnp.zeros(self.cell.hidden_size)
        (h, _), _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), (zeros, zeros), x)
        return self.head(h)


def lstm(params: Params) -> Classifier:
    cell = params["cell"]
    layer = nn.LSTMCell(cell["wi"].shape[0], cell["wh"].shape[0], key=KEY)
    layer = with_arrays(layer, weight_ih=cell["wi"].T, weight_hh=cell["wh"].T, bias=cell["b"])
    return Classifier(layer, dense(params["head"]))


class Block(eqx.Module):
    """A block of a decoder."""

    attention: nn.MultiheadAttention
    norm1: nn.LayerNorm
    norm2: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        """The result for [time, size]."""
        inside = jax.vmap(self.norm1)(x)
        x = x + self.attention(inside, inside, inside, mask=jnp.tri(len(x), dtype=bool))
        return x + jax.vmap(lambda x: self.down(jax.nn.gelu(self.up(self.norm2(x)))))(x)


class Transformer(eqx.Module):
    """A decoder."""

    tokens: nn.Embedding
    places: jax.Array
    blocks: list[Block]
    norm: nn.LayerNorm
    head: nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits for [time] tokens."""
        x = jax.vmap(self.tokens)(x) + self.places
        for block in self.blocks:
            x = block(x)
        return jax.vmap(lambda x: self.head(self.norm(x)))(x)


def norm(p: Params) -> nn.LayerNorm:
    return with_arrays(nn.LayerNorm(len(p["w"])), weight=p["w"], bias=p["b"])


def block(p: Params, heads: int) -> Block:
    biases = dict.fromkeys((f"use_{each}_bias" for each in ("query", "key", "value", "output")), True)
    attention = nn.MultiheadAttention(heads, len(p["norm1"]["w"]), **biases, key=KEY)
    names = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "output_proj"}
    attention = eqx.tree_at(
        lambda layer: [getattr(layer, name) for name in names.values()], attention, [dense(p[each]) for each in names]
    )
    return Block(attention, norm(p["norm1"]), norm(p["norm2"]), dense(p["up"]), dense(p["down"]))


def transformer(params: Params, heads: int) -> Transformer:
    tokens = with_arrays(nn.Embedding(*params["tokens"].shape, key=KEY), weight=params["tokens"])
    blocks = [block(p, heads) for p in params["blocks"]]
    return Transformer(tokens, jnp.asarray(params["places"]), blocks, norm(params["norm"]), dense(params["head"]))


def trainer(size: Size) -> Trainer:
    params, (x, y) = size.drawn()
    if size.model == "transformer":
        model = transformer(params, size.heads)
    else:
        model = {"mlp": mlp, "lenet": lenet, "lstm": lstm}[size.model](params)
    x, y = jnp.asarray(x), jnp.asarray(y)
    x = jnp.moveaxis(x, -1, 1) if size.model == "lenet" else x
    optimizer = optax.adam(RATE)

    @eqx.filter_jit(donate="all-except-first")
    def step(batch: Any, model: Any, state: Any) -> tuple[jax.Array, Any, Any]:
        x, y = batch
        loss, grads = eqx.filter_value_and_grad(lambda model: cross_entropy(jax.vmap(model)(x), y))(model)
        updates, state = optimizer.update(grads, state, model)
        return loss, eqx.apply_updates(model, updates), state

    return compiled_trainer(step, (x, y), model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
