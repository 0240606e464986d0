"""Training: states keep their types through optimisers, loops, checkpoints and meshes."""

from collections.abc import Iterator
from typing import Any, assert_type

import jax
import numpy as np
import optax  # pyright: ignore[reportMissingTypeStubs]
from jax.sharding import Mesh, PartitionSpec
from values import W, X

import aerogel as ag


class Linear(ag.Module):
    weight: jax.Array
    bias: jax.Array


State = tuple[Linear, ag.Optimizer]


def loss(model: Linear, x: jax.Array) -> jax.Array:
    return ((model.weight @ x + model.bias) ** 2).mean()


def step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    model, optimizer = state
    value, grads = ag.value_and_grad(loss)(model, x)
    return optimizer.update(model, grads), value


def batches() -> Iterator[np.ndarray]:
    yield np.ones(2, "float32")


model = Linear(W, X)
optimizer = ag.Optimizer(optax.sgd(0.1)).init(model)
assert_type(optimizer, ag.Optimizer)
assert_type(optimizer.update(model, model), tuple[Linear, ag.Optimizer])
training = ag.loop(step, (model, optimizer), ag.prefetch(batches(), size=2))
assert_type(training.state, State)
assert_type(ag.EMA().init(model).model(model), Linear)


def spread(mesh: Mesh) -> None:
    assert_type(ag.shard(model, mesh, {"weight": PartitionSpec("data")}), Linear)
    assert_type(ag.shard_init(lambda: Linear(W, X), mesh, {"**": "data"}), Linear)
    assert_type(ag.shardings(model, mesh, {}), Any)
    ag.shard(model, mesh)  # pyright: ignore[reportCallIssue]
