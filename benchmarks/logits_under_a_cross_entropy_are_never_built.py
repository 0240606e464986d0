"""Claim: a recurrent network's output head and its reduced cross-entropy never hold all `T x B x V` logits.

The natural form multiplies the stacked states by the head and takes the mean cross-entropy. Experts do it block by
block over time, inside the loop or after it, and recompute a block's logits in the backward pass.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

T, B, H, V = 64, 32, 128, 4096


def states(w, h, xs):
    def body(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return lax.scan(body, h, xs)[1]


def cross_entropy(logits, labels):
    """Mean of `-log softmax(logits)[label]`, as one writes it without Optax."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


def natural(w, head, h, xs, labels):
    return cross_entropy(states(w, h, xs) @ head, labels)


def in_the_loop(wrap):
    def f(w, head, h, xs, labels):
        loss = wrap(lambda h, head, label: cross_entropy(h @ head, label))

        def body(h, inputs):
            x, label = inputs
            h = jnp.tanh(h @ w + x)
            return h, loss(h, head, label)

        return jnp.mean(lax.scan(body, h, (xs, labels))[1])

    return f


def after_the_loop(block, wrap):
    """The states are stacked (they are small); the loss runs over blocks of `block` steps."""

    def f(w, head, h, xs, labels):
        loss = wrap(lambda h, head, label: cross_entropy(h @ head, label))
        hs = states(w, h, xs).reshape(T // block, block * B, H)
        return jnp.mean(lax.map(lambda b: loss(b[0], head, b[1]), (hs, labels.reshape(T // block, block * B))))

    return f


def recomputed(f):
    return jax.checkpoint(f, prevent_cse=False)  # inside a loop nothing can be merged with the forward pass anyway


def arguments(t=T, b=B, h=H, v=V):
    labels = jax.random.randint(jax.random.key(4), (t, b), 0, v)
    return normal(0, h, h) / h**0.5, normal(1, h, v) / h**0.5, jnp.zeros((b, h)), normal(2, t, b, h), labels


CASES = (
    Case(
        "head and cross-entropy of a recurrent network",
        natural,
        {
            "in the loop": in_the_loop(lambda f: f),
            "in the loop, recomputed": in_the_loop(recomputed),
            "blocks of 1 step after the loop, recomputed": after_the_loop(1, recomputed),
            "blocks of 4 steps after the loop, recomputed": after_the_loop(4, recomputed),
            "blocks of 16 steps after the loop, recomputed": after_the_loop(16, recomputed),
        },
        arguments,
        grad=(0, 1),
        bounds=Bounds(memory_saving=8.0),
        grad_bounds=Bounds(memory_saving=4.0),
        notes=f"T={T}, batch {B}, hidden {H}, vocabulary {V}: the logits are {T * B * V * 4 / 1e6:.0f} MB",
    ),
    Case(
        "the same, of few logits",
        natural,
        {"in the loop": in_the_loop(lambda f: f), "as it is": natural},
        lambda: arguments(32, 16, 64, 2048),
        bounds=Bounds(memory_over_hand=None),
        notes="4 MB of logits, which are as fast as they are written: in the loop each step wakes threads",
    ),
)
