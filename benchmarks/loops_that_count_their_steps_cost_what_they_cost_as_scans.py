"""Claim: a `while` that counts its steps to a number, and a loop that adds up a loss, cost what an expert's form does.

XLA knows how often such a loop runs, but draws, multiplies and writes in each step what an expert makes once, or for
all steps at once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, memory_over_hand=None)
GAIN = Bounds(over_hand=1.10, speedup=1.5, memory_over_hand=None)


def counted(steps, f, x):
    """A loop of so many steps, written as a `while`."""
    return lax.while_loop(lambda s: s[0] < steps, lambda s: (s[0] + 1, f(s[0], s[1])), (0, x))[1]


def noise(x):
    return counted(60, lambda _, c: jnp.tanh(c * jax.random.normal(jax.random.key(0), x.shape)), x)


def noise_once(x):
    z = jax.random.normal(jax.random.key(0), x.shape)
    return lax.fori_loop(0, 60, lambda _, c: jnp.tanh(c * z), x)


def outers(k, v):
    return counted(len(k), lambda i, s: s + jnp.outer(k[i], v[i]), jnp.zeros((k.shape[1], v.shape[1])))


def recurrent(w, u, x):
    return counted(len(x), lambda i, h: jnp.tanh(u @ h + w @ x[i]), jnp.zeros(len(u)))


def recurrent_by_hand(w, u, x):
    return lax.scan(lambda h, v: (jnp.tanh(u @ h + v), None), jnp.zeros(len(u)), x @ w.T)[0]


def linear_loss(w, x, y):
    return lax.scan(lambda s, b: (s + jnp.sum((b[0] @ w - b[1]) ** 2), None), 0.0, (x, y))[0]


def network_loss(w, v, x, y):
    return lax.scan(lambda s, b: (s + jnp.sum((jnp.tanh(b[0] @ w) @ v - b[1]) ** 2), None), 0.0, (x, y))[0]


def columns(x):
    return lax.fori_loop(0, x.shape[1], lambda i, y: y.at[:, i].set(jnp.tanh(x[:, i]) * x[:, i]), jnp.zeros_like(x))


CASES = (
    Case("draws of one key", noise, {"once": noise_once}, lambda: (normal(0, 5001),), bounds=GAIN),
    Case(
        "a sum of outer products",
        outers,
        {"one product": lambda k, v: k.T @ v},
        lambda: (normal(0, 301, 48), normal(1, 301, 33)),
        bounds=GAIN,
    ),
    Case(
        "a recurrent net",
        recurrent,
        {"inputs at once": recurrent_by_hand},
        lambda: (normal(0, 96, 80) / 9, normal(1, 96, 96) / 20, normal(2, 151, 80)),
        bounds=BOUNDS,
    ),
    Case(
        "a loss over batches",
        linear_loss,
        {"at once": lambda w, x, y: jnp.sum((x @ w - y) ** 2)},
        lambda: (normal(0, 40, 7), normal(1, 200, 16, 40), normal(2, 200, 16, 7)),
        grad=(0,),
        bounds=GAIN,
        grad_bounds=GAIN,
    ),
    Case(
        "a network's loss over batches",
        network_loss,
        {"at once": lambda w, v, x, y: jnp.sum((jnp.tanh(x @ w) @ v - y) ** 2)},
        lambda: (normal(0, 40, 32) / 6, normal(1, 32, 7) / 6, normal(2, 200, 16, 40), normal(3, 200, 16, 7)),
        grad=(0, 1),
        bounds=GAIN,
        grad_bounds=GAIN,
    ),
    Case(
        "columns one by one",
        columns,
        {"at once": lambda x: jnp.tanh(x) * x},
        lambda: (normal(0, 33, 801),),
        grad=(0,),
        bounds=BOUNDS,
        grad_bounds=GAIN,
    ),
)
