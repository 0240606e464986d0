"""Claim: a product of a wide operand with a narrow one reads the wide one along its rows, however it is written.

`x.T @ y` with a narrow `y` gathers the rows of `x.T`. `(y.T @ x).T` does not, but XLA folds one into the other, which
an expert keeps it from by a barrier. Gradients of the weights of narrow layers are such products, and those of the
keys of an attention. What all steps of a loop read against its rows, as a recurrent layer its weights, an expert turns
before the loop.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

FASTER = Bounds(over_hand=1.10, speedup=1.25)
RECURRENT = Bounds(over_hand=1.10, speedup=1.15, memory_over_hand=None)
BOUNDS = Bounds(over_hand=1.10, memory_over_hand=None)


def case(name, natural, hand, *shapes, grad=(), bounds=FASTER, grad_bounds=FASTER):
    def args():
        return tuple(normal(k, *shape) for k, shape in enumerate(shapes))

    return Case(name, natural, {"by hand": hand}, args, grad=grad, bounds=bounds, grad_bounds=grad_bounds)


def turned(x, y):
    """`x.T @ y`, of each of a batch."""
    contract = ((y.ndim - 2,), (x.ndim - 2,))
    batch = tuple(range(x.ndim - 2))
    return jnp.swapaxes(lax.optimization_barrier(lax.dot_general(y, x, (contract, (batch, batch)))), -1, -2)


def descent(w, x, y):
    """Steps of linear regression."""

    def step(_, w):
        return w - 0.1 / len(x) * x.T @ (x @ w - y)

    return lax.fori_loop(0, 10, step, w)


def descent_by_hand(w, x, y):
    return lax.fori_loop(0, 10, lambda _, w: w - 0.1 / len(x) * turned(x, x @ w - y), w)


def readout(w, h, y):
    """The gradient of a readout of a few numbers."""
    return jax.grad(lambda w: jnp.mean((jnp.tanh(h @ w) - y) ** 2))(w)


def readout_by_hand(w, h, y):
    t = jnp.tanh(h @ w)
    return turned(h, 2 / y.size * (t - y) * (1 - t * t))


def recurrent(w, x):
    """A recurrent layer with weights [out, in]."""
    return lax.scan(lambda h, x: (jnp.tanh(h @ w.T + x), None), jnp.zeros_like(x[0]), x)[0]


def recurrent_by_hand(w, x):
    across = lax.optimization_barrier(w.T)
    return lax.scan(lambda h, x: (jnp.tanh(h @ across + x), None), jnp.zeros_like(x[0]), x)[0]


def of_sequences(w, x):
    """The same, of one sequence, under `vmap`."""
    return jax.vmap(lambda x: lax.scan(lambda h, x: (jnp.tanh(w @ h + x), None), jnp.zeros_like(x[0]), x)[0])(x)


def attention(q, k, v):
    """Of heads, as `jax.nn` writes it."""
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


@jax.custom_vjp
def attended(q, k, v):
    return attended_forward(q, k, v)[0]


def attended_forward(q, k, v):
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    weights = jax.nn.softmax(q @ jnp.swapaxes(k, 2, 3) / q.shape[-1] ** 0.5)
    return jnp.swapaxes(weights @ v, 1, 2), (q, k, v, weights)


def attended_backward(kept, g):
    q, k, v, weights = kept
    g = jnp.swapaxes(g, 1, 2)
    of_weights = g @ jnp.swapaxes(v, 2, 3)
    of_scores = weights * (of_weights - jnp.sum(of_weights * weights, -1, keepdims=True)) / q.shape[-1] ** 0.5
    found = of_scores @ k, turned(of_scores, q), turned(weights, g)
    return tuple(jnp.swapaxes(x, 1, 2) for x in found)


attended.defvjp(attended_forward, attended_backward)


CASES = (
    case("moments of rows", lambda x, y: x.T @ y, turned, (8_000, 150), (8_000, 6)),
    case("moments of columns", lambda x, y: x.T @ y, turned, (700, 3_000), (700, 12)),
    case(
        "two axes of samples",
        lambda x, y: jnp.einsum("bti,bto->io", x, y),
        lambda x, y: turned(x.reshape(-1, 256), y.reshape(-1, 20)),
        (30, 100, 256),
        (30, 100, 20),
    ),
    case("a regression for each of a batch", jax.vmap(lambda x, y: x.T @ y), turned, (20, 900, 70), (20, 900, 3)),
    case(
        "few directions times many rows",
        lambda w, x: w.T @ x.T,
        lambda w, x: lax.optimization_barrier(x @ w).T,
        (900, 5),
        (4_000, 900),
    ),
    case(
        "few directions times columns",
        lambda w, x: w.T @ x,
        lambda w, x: lax.optimization_barrier(w.T) @ x,
        (48, 30),
        (48, 5_000),
        bounds=BOUNDS,
    ),
    case(
        "ten steps of regression",
        descent,
        descent_by_hand,
        (120, 7),
        (5_000, 120),
        (5_000, 7),
    ),
    case("gradient of a readout", readout, readout_by_hand, (300, 9), (6_000, 300), (6_000, 9), bounds=BOUNDS),
    case("a recurrent layer, 16 rows", recurrent, recurrent_by_hand, (128, 128), (200, 16, 128), bounds=RECURRENT),
    case("a recurrent layer, 4 rows", recurrent, recurrent_by_hand, (256, 256), (200, 4, 256), bounds=RECURRENT),
    case(
        "a recurrent layer of 8 sequences",
        of_sequences,
        lambda w, x: recurrent_by_hand(w, jnp.swapaxes(x, 0, 1)),
        (64, 64),
        (8, 300, 64),
        bounds=RECURRENT,
    ),
    case(
        "attention of heads",
        attention,
        attended,
        *3 * ((2, 384, 6, 48),),
        grad=(0, 1, 2),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
)
