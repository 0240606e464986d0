"""Plain JAX: dicts of arrays and functions, written by hand."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ._size import RATE, Params, Size
from ._trainer import Trainer, compiled_trainer, cross_entropy


def dense(p: Params, x: jax.Array) -> jax.Array:
    return x @ p["w"] + p["b"]


def mlp(params: Params, x: jax.Array) -> jax.Array:
    *hidden, last = params["layers"]
    for layer in hidden:
        x = jax.nn.relu(dense(layer, x))
    return dense(last, x)


def max_pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def lenet(params: Params, x: jax.Array) -> jax.Array:
    for p in params["convs"]:
        x = jax.lax.conv_general_dilated(x, p["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = max_pool(jax.nn.relu(x + p["b"]))
    return mlp(params, x.reshape(len(x), -1))


def lstm(params: Params, x: jax.Array) -> jax.Array:
    cell = params["cell"]
    hidden = cell["wh"].shape[0]

    def step(state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[Any, None]:
        h, c = state
        i, f, g, o = jnp.split(x @ cell["wi"] + h @ cell["wh"] + cell["b"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros((len(x), hidden))
    (h, _), _ = jax.lax.scan(step, (zeros, zeros), jnp.swapaxes(x, 0, 1))
    return dense(params["head"], h)


def norm(p: Params, x: jax.Array) -> jax.Array:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["w"] + p["b"]


def attention(p: Params, x: jax.Array, heads: int) -> jax.Array:
    batch, time, size = x.shape
    q, k, v = (dense(p[each], x).reshape(batch, time, heads, -1) for each in ("q", "k", "v"))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / (size // heads) ** 0.5
    scores = jnp.where(jnp.tri(time, dtype=bool), scores, -jnp.inf)
    taken = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return dense(p["o"], taken.reshape(batch, time, size))


def transformer(params: Params, x: jax.Array, heads: int) -> jax.Array:
    x = params["tokens"][x] + params["places"]
    for p in params["blocks"]:
        x = x + attention(p, norm(p["norm1"], x), heads)
        x = x + dense(p["down"], jax.nn.gelu(dense(p["up"], norm(p["norm2"], x))))
    return dense(params["head"], norm(params["norm"], x))


def trainer(size: Size) -> Trainer:
    params, batch = jax.tree.map(jnp.asarray, size.drawn())
    apply = {"mlp": mlp, "lenet": lenet, "lstm": lstm}.get(size.model, functools.partial(transformer, heads=size.heads))
    optimizer = optax.adam(RATE)

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def step(batch: Any, params: Params, state: Any) -> tuple[jax.Array, Any, Any]:
        x, y = batch
        loss, grads = jax.value_and_grad(lambda params: cross_entropy(apply(params, x), y))(params)
        updates, state = optimizer.update(grads, state, params)
        return loss, optax.apply_updates(params, updates), state

    return compiled_trainer(step, batch, params, optimizer.init(params))
