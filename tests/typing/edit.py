"""Editing: a path leads anywhere, and the end of it is a model of the same type."""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
from values import W, X

import aerogel as ag


class Linear(ag.Module):
    weight: jax.Array
    bias: jax.Array


class Three(ag.Module):
    one: jax.Array
    two: jax.Array
    three: jax.Array


model = Linear(W, X)
assert_type(ag.at(model), ag.At[Linear])
assert_type(ag.at(model).weight, ag.At[Linear])
assert_type(ag.at(model).layers[0].weight, ag.At[Linear])
assert_type(ag.at(model).weight.set(X), Linear)
assert_type(ag.at(model).weight.apply(jnp.transpose), Linear)
assert_type(ag.at(model, "**.weight").apply(lambda w: 2 * w), Linear)
assert_type(ag.at(model, lambda path, x: x.ndim == 2).set(1), Linear)
assert_type(ag.at(model, lambda m: [m.weight, m.bias]).get(), Any)
assert_type(ag.at(model).replace(weight=X), Linear)
assert_type(ag.freeze(model, "bias"), Linear)
assert_type(ag.unfreeze(model), Linear)
assert_type(ag.frozen(model), list[Any])
assert_type(ag.partition(model, ag.trainable), tuple[Linear, Linear])
params, rest = ag.partition(model, jax.Array)
assert_type(ag.combine(params, rest), Linear)
assert_type(ag.combine(params, model), Linear)
assert_type(ag.map_leaves(jnp.negative, model), Linear)
assert_type(ag.map_leaves(lambda x: 2 * x, model, where="weight"), Linear)
assert_type(ag.map_leaves(lambda path, x: x if path.startswith("w") else None, model, with_path=True), Linear)
assert_type(ag.map_leaves(jnp.add, model, model), Linear)
assert_type(ag.count_params(model, by="part"), dict[str, int])
assert_type(ag.cast(model, jnp.bfloat16), Linear)
ag.at(model).weight.set()  # pyright: ignore[reportCallIssue]
assert_type(ag.freeze(model, [Three, "**.bias"]), Linear)
assert_type(ag.freeze(model, Three), Linear)
ag.freeze(model, 3)  # pyright: ignore[reportArgumentType]
