"""Claim: a sum of products takes as long with an axis of the length one as without.

XLA's CPU library multiplies entry by entry where one is there (a batch of one text, `keepdims=True`). The expert's
forms are given arrays without the axis.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

ONE = Bounds(over_hand=1.10, over_natural=0.5, memory_over_hand=None)


def pooled(w, x):
    return jnp.sum(jax.nn.softmax(w, 1)[..., None] * x, 1)


def pooled_alone(w, x):
    return jnp.sum(jax.nn.softmax(w[0])[:, None] * x[0], 0)[None]


def scaled(x, y):
    return jnp.sum(x * y, -1, keepdims=True) * x


def scaled_alone(x, y):
    return scaled(x[:, 0], y[:, 0])[:, None]


def linear_attention(q, k, v, s):
    """Of one text: the state is read by its columns."""

    def step(s, x):
        q, k, v = x
        s = 0.95 * s + k[..., None] * v[:, None]
        return s, jnp.sum(s * q[..., None], 1)

    return lax.scan(step, s, (q, k, v))[1]


def linear_attention_alone(q, k, v, s):
    def step(s, x):
        q, k, v = x
        s = 0.95 * s + k[:, None] * v
        return s, jnp.sum(s * q[:, None], 0)

    return lax.scan(step, s[0], (q[:, 0], k[:, 0], v[:, 0]))[1][:, None]


def text():
    return normal(0, 1, 1024), normal(1, 1, 1024, 256)


def middle():
    return normal(0, 512, 1, 512), normal(1, 512, 1, 512)


def steps(size):
    return lambda: (*(normal(k, 128, 1, size) for k in range(3)), jnp.zeros((1, size, size)))


def case(name, natural, alone, args, grad, bounds=ONE):
    return Case(name, natural, {"without the axis": alone}, args, grad, bounds=ONE, grad_bounds=bounds)


CASES = (
    case("one text of 1024 places, pooled", pooled, pooled_alone, text, (0, 1)),
    case("512 x 1 x 512, scaled by sums", scaled, scaled_alone, middle, (0, 1)),
    case("linear attention of one text, 64 x 64", linear_attention, linear_attention_alone, steps(64), (0, 1, 2)),
    case("linear attention of one text, 128 x 128", linear_attention, linear_attention_alone, steps(128), (0, 1, 2)),
)
