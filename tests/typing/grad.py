"""Gradients have the type of the argument, and values that of the function."""

from collections.abc import Callable
from typing import Any, assert_type

import jax
import jax.numpy as jnp
from values import W, X

import aerogel as ag


class Linear(ag.Module):
    weight: jax.Array
    bias: jax.Array


def loss(model: Linear, x: jax.Array) -> jax.Array:
    return (model.weight @ x + model.bias).sum()


def loss_and_more(model: Linear, x: jax.Array) -> tuple[jax.Array, dict[str, int]]:
    return loss(model, x), {"n": 1}


model = Linear(W, X)
x = X

assert_type(ag.grad(loss)(model, x), Linear)
prepared = ag.prepare(ag.value_and_grad(loss), model, jax.ShapeDtypeStruct((2,), "float32"))
value, grads = assert_type(prepared(model, x), tuple[jax.Array, Linear])
assert_type(prepared(model, x, out=grads), tuple[jax.Array, Linear])
assert_type(prepared.cost.over_value, dict[str, float] | None)
ag.prepare(3, x)  # pyright: ignore[reportArgumentType]
ag.check_grads(loss, (model, x), 1, "rev", rtol=0.1)
ag.check_grads(loss, model, 1.5)  # pyright: ignore[reportArgumentType]
assert_type(ag.grad(loss, wrt="bias")(model, x).bias, jax.Array)
assert_type(ag.grad(loss, has_aux=False)(model, x), Linear)
assert_type(ag.grad(loss_and_more, has_aux=True)(model, x), tuple[Linear, dict[str, int]])
assert_type(ag.value_and_grad(loss)(model, x), tuple[jax.Array, Linear])
assert_type(ag.value_and_grad(loss_and_more, has_aux=True)(model, x), tuple[tuple[jax.Array, dict[str, int]], Linear])
assert_type(ag.grad(loss, argnums=1)(model, x), Any)
assert_type(ag.grad(loss, argnums=(0, 1))(model, x), Any)
ag.grad(loss)(x, x)  # pyright: ignore[reportArgumentType]
ag.grad(loss)(model)  # pyright: ignore[reportCallIssue]
ag.grad(3)  # pyright: ignore[reportCallIssue, reportArgumentType]

assert_type(ag.jit(ag.value_and_grad(loss))(model, x), tuple[jax.Array, Linear])
out, tangent = ag.jvp(loss, (model, x), (model, None))
out, pullback = ag.vjp(loss, model, x)
assert_type(ag.vjp(loss, model, x)[0], jax.Array)
assert_type(ag.vjp(loss, model, x)[1](1.0), tuple[Any, ...])
assert_type(ag.jvp(loss, (model, x), (model, None))[0], jax.Array)
assert_type(ag.linearize(loss, model, x)[0], jax.Array)
assert_type(ag.jacfwd(loss)(model, x), Any)
assert_type(ag.jacrev(loss)(model, x), Any)
assert_type(ag.hessian(loss)(model, x), Any)


@ag.checkpoint
def body(x: jax.Array, how: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return how(x)


@ag.checkpoint(prevent_cse=False)
def other(x: jax.Array) -> jax.Array:
    return x


assert_type(body(x, jnp.sin), jax.Array)
assert_type(other(x), jax.Array)
body(x)  # pyright: ignore[reportCallIssue]


@ag.custom_jvp
def sine(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


@sine.defjvp
def sine_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return sine(*primals), jnp.cos(primals[0]) * tangents[0]


@ag.custom_vjp
def clip(x: jax.Array, most: float) -> jax.Array:
    return x


def clip_forward(x: jax.Array, most: float) -> tuple[jax.Array, float]:
    return x, most


def clip_backward(most: float, g: jax.Array) -> tuple[jax.Array, None]:
    return jnp.clip(g, -most, most), None


clip.defvjp(clip_forward, clip_backward)
assert_type(sine(x), jax.Array)
assert_type(clip(x, 1.0), jax.Array)
clip(x)  # pyright: ignore[reportCallIssue]
