"""`ag.jit` keeps the signature of a function, a module and a method."""

from typing import assert_type

import jax
import jax.numpy as jnp
from values import W, X

import aerogel as ag


class Linear(ag.Module):
    weight: jax.Array

    def __call__(self, x: jax.Array, scale: float = 1.0) -> jax.Array:
        return scale * (self.weight @ x)

    @ag.jit
    def norm(self, order: int) -> jax.Array:
        return jnp.abs(self.weight) ** order


@ag.jit
def double(x: jax.Array, *, name: str = "") -> dict[str, jax.Array]:
    return {name: 2 * x}


@ag.jit(donate="state", static_argnames="steps")
def train(model: Linear, steps: int) -> Linear:
    return model


model = Linear(W)
x = X
assert_type(double(x, name="a"), dict[str, jax.Array])
double(x, nam="a")  # pyright: ignore[reportCallIssue]
double("x")  # pyright: ignore[reportArgumentType]
assert_type(train(model, 3), Linear)
assert_type(train(model, steps=3), Linear)
train(model, "3")  # pyright: ignore[reportArgumentType]
assert_type(ag.jit(model)(x, scale=2.0), jax.Array)
assert_type(ag.jit(model.__call__)(x), jax.Array)
ag.jit(model)()  # pyright: ignore[reportCallIssue]
assert_type(model.norm(2), jax.Array)
model.norm("fro")  # pyright: ignore[reportArgumentType]
ag.jit(double, numerics="strict", donate_argnums=(0,))
ag.jit(double, donate="sate")  # pyright: ignore[reportArgumentType]
ag.jit(3)  # pyright: ignore[reportArgumentType]
double.lower(x).compile()
double.clear_cache()


@ag.jit(explain_recompiles=True)
def loss(model: Linear, x: jax.Array) -> jax.Array:
    return model(x).sum()


assert_type(loss(model, x), jax.Array)
with ag.assert_max_traces(1):
    loss(model, x)
