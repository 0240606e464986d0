"""Claim: a Laplacian that is the trace of a Hessian multiplies its tangents by each layer's weights once.

JAX multiplies them twice, on the way forth and back. By hand: forward over forward, and a formula for two layers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

FASTER = Bounds(over_hand=1.0, speedup=1.2, memory_over_hand=None)
FORMULA = Bounds(over_hand=1.5, speedup=1.2, memory_over_hand=None)


def two_layers(w):
    return lambda x: jnp.sum(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]))


def three_layers(w):
    return lambda x: jnp.sum(jnp.sin(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) @ w[1]))


def trace(f):
    return lambda w, x: jax.vmap(lambda x: jnp.trace(jax.hessian(f(w))(x)))(x)


def pushes(f):
    def of(w, x):
        along = lambda v: jax.jvp(jax.grad(f(w)), (x,), (v,))[1] @ v  # noqa: E731
        return jnp.sum(jax.vmap(along)(jnp.eye(len(x))))

    return lambda w, x: jax.vmap(lambda x: of(w, x))(x)


def forward(f):
    def of(w, x):
        along = lambda v: jax.jvp(lambda y: jax.jvp(f(w), (y,), (v,))[1], (x,), (v,))[1]  # noqa: E731
        return jnp.sum(jax.vmap(along)(jnp.eye(len(x))))

    return lambda w, x: jax.vmap(lambda x: of(w, x))(x)


def formula(w, x):
    """Of two layers: squares of the tangents are summed up before they meet the second derivatives."""

    def of(x):
        t = jnp.tanh(x @ w[0])
        d = 1 - t * t
        z = jnp.tanh(t @ w[1])
        e = 1 - z * z
        tangents = (w[0] * d) @ w[1]
        second = (-2 * t * d * jnp.sum(w[0] * w[0], 0)) @ w[1]
        return jnp.sum(e * second - 2 * z * e * jnp.sum(tangents * tangents, 0))

    return jax.vmap(of)(x)


def args(count, width=64):
    return lambda: ((normal(0, 24, width) / 5, normal(1, width, width) / 8), normal(2, count, 24))


CASES = (
    Case("two layers", trace(two_layers), {"forward": forward(two_layers)}, args(150), bounds=FASTER),
    Case("two layers, many points", trace(two_layers), {"forward": forward(two_layers)}, args(1500), bounds=FASTER),
    Case("three layers", trace(three_layers), {"forward": forward(three_layers)}, args(150), bounds=FASTER),
    Case("two layers, by pushes", pushes(two_layers), {"forward": forward(two_layers)}, args(150), bounds=FASTER),
    Case("two layers, beside a formula", trace(two_layers), {"formula": formula}, args(150), bounds=FORMULA),
)
