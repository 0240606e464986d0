"""Claim: products of bfloat16 are made by the processor's instructions for them, however they are written.

XLA's CPU backend makes both operands float32 first, and rounds the result. Asked for a result in float32 it takes the
short numbers as they are, in half of the time, if the left operand's terms are its last axis; an expert asks for that,
writes the backward products of a layer the same way, and turns and copies operands where the terms are the first axis.
Only processors with AVX512_BF16 have rows: on others the rule leaves the products alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from aerogel.compiler.cost.machine import machine

from ._case import Bounds, Case, normal

FASTER = Bounds(over_hand=1.10, speedup=1.2)
PART = Bounds(over_hand=1.10, speedup=1.1, memory_over_hand=None)


def short(seed, *shape):
    return normal(seed, *shape).astype(jnp.bfloat16)


def times(a, b, left, right, batch=((), ())):
    """A product in float32, whose left operand's terms are last, rounded once."""
    made = lax.dot_general(a, b, (((left,), (right,)), batch), preferred_element_type=jnp.float32)
    return lax.optimization_barrier(made).astype(jnp.bfloat16)


def by_rows(x):
    """An array that is stored as it stands there, whatever it was made of."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


@jax.custom_vjp
def matmul(a, b):
    return times(a, b, 1, 0)


def matmul_forward(a, b):
    return matmul(a, b), (a, b)


def matmul_backward(kept, g):
    a, b = kept
    return times(g, b, 1, 1), times(by_rows(a.T), g, 1, 0)


matmul.defvjp(matmul_forward, matmul_backward)


def loss(multiply):
    """Of a network of four layers."""

    def f(w, x, y):
        for layer in w:
            x = jax.nn.relu(multiply(x, layer))
        return jnp.mean((x - y).astype(jnp.float32) ** 2)

    return f


def recurrent(multiply):
    """A recurrent layer whose input is multiplied in each step."""

    def f(w, u, xs):
        def step(h, x):
            return jnp.tanh(multiply(h, w) + multiply(x, u)), None

        return jnp.sum(lax.scan(step, jnp.zeros_like(xs[0]), xs)[0].astype(jnp.float32) ** 2)

    return f


def cast_gradient(w, h, xs):
    """By float32 weights that each step makes bfloat16."""

    def f(w):
        step = lambda h, x: (jnp.tanh(h @ w.astype(jnp.bfloat16) + x), None)  # noqa: E731
        return jnp.sum(lax.scan(step, h, xs)[0].astype(jnp.float32) ** 2)

    return jax.grad(f)(w.astype(jnp.float32) / 16)


def cast_gradient_by_hand(w, h, xs):
    """One product of all steps, in float32."""
    w = w / 16

    def step(h, x):
        new = jnp.tanh(h @ w + x)
        return new, (h, new)

    def back(g, kept):
        g = g * (1 - kept[1] * kept[1])
        return g @ w.T, g

    last, kept = lax.scan(step, h, xs)
    _, gs = lax.scan(back, (2 * last.astype(jnp.float32)).astype(jnp.bfloat16), kept, reverse=True)
    return lax.dot_general(kept[0], gs, (((0, 1), (0, 1)), ((), ())), preferred_element_type=jnp.float32)


def attention(q, k, v):
    """Of heads, as `jax.nn` writes it."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(q.dtype), v)


def attention_by_hand(q, k, v):
    q, k, v = (by_rows(jnp.swapaxes(x, 1, 2)) for x in (q, k, v))
    heads = ((0, 1), (0, 1))
    scores = times(q, k, 3, 3, heads).astype(jnp.float32) / q.shape[-1] ** 0.5
    return jnp.swapaxes(times(jax.nn.softmax(scores).astype(q.dtype), v, 3, 2, heads), 1, 2)


def plain(a, b):
    return a @ b


def case(name, natural, hand, *shapes, grad=(), bounds=FASTER, grad_bounds=FASTER):
    def args():
        return tuple(short(k, *shape) for k, shape in enumerate(shapes))

    return Case(name, natural, {"by hand": hand}, args, grad=grad, bounds=bounds, grad_bounds=grad_bounds)


def layers(width, rows):
    def args():
        return [short(k, width, width) / width**0.5 for k in range(4)], short(8, rows, width), short(9, rows, width)

    name = f"four layers of {width}, {rows} rows"
    return Case(name, loss(plain), {"by hand": loss(matmul)}, args, grad=(0,), bounds=PART, grad_bounds=PART)


CASES = (
    case("512 x 512", plain, matmul, (512, 512), (512, 512)),
    case("terms last in both", lambda a, b: a @ b.T, lambda a, b: times(a, b, 1, 1), (256, 384), (200, 384)),
    case(
        "terms first in both",
        lambda a, b: a.T @ b,
        lambda a, b: times(by_rows(a.T), b, 1, 0),
        (512, 256),
        (512, 300),
    ),
    case("of a batch", jax.vmap(plain), lambda a, b: times(a, b, 2, 1, ((0,), (0,))), (12, 96, 96), (12, 96, 96)),
    case(
        "a layer of sequences",
        lambda x, w: jnp.einsum("bti,oi->bto", x, w),
        lambda x, w: times(x.reshape(-1, 256), w, 1, 1).reshape(4, 96, 320),
        (4, 96, 256),
        (320, 256),
    ),
    layers(256, 64),
    layers(640, 96),
    case("weights cast in each step", cast_gradient, cast_gradient_by_hand, (256, 256), (4, 256), (100, 4, 256)),
    case("attention of heads", attention, attention_by_hand, *3 * ((2, 192, 6, 64),), bounds=PART),
    case("a recurrent layer", recurrent(plain), recurrent(matmul), (192, 192), (192, 192), (60, 24, 192), bounds=PART),
) if machine("cpu").multiplies_bfloat16 else ()  # fmt: skip
