"""Rows 18 to 21: recurrent networks, integrators and stencils, all of them a `scan`, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ._row import Row, normal

POINTS = 100_000
STEP = 0.1


def rnn(w, u, b, xs):
    def step(h, x):
        h = jnp.tanh(x @ w + h @ u + b)
        return h, h

    return jnp.sum(jax.lax.scan(step, jnp.zeros((xs.shape[1], len(u))), xs)[1] ** 2)


def lstm(w, u, b, xs):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((xs.shape[1], len(u)))
    return jnp.sum(jax.lax.scan(step, (zeros, zeros), xs)[1] ** 2)


def gru(w, u, b, b_state, xs):
    def step(h, x):
        reset_x, update_x, new_x = jnp.split(x @ w + b, 3, axis=-1)
        reset_h, update_h, new_h = jnp.split(h @ u + b_state, 3, axis=-1)
        reset, update = jax.nn.sigmoid(reset_x + reset_h), jax.nn.sigmoid(update_x + update_h)
        h = (1 - update) * jnp.tanh(new_x + reset * new_h) + update * h
        return h, h

    return jnp.sum(jax.lax.scan(step, jnp.zeros((xs.shape[1], len(u))), xs)[1] ** 2)


def force(q, k):
    return -k * jnp.sin(q)


def leapfrog(q, p, k):
    def step(state, _):
        q, p = state
        p = p + 0.5 * STEP * force(q, k)
        q = q + STEP * p
        return (q, p + 0.5 * STEP * force(q, k)), None

    q, p = jax.lax.scan(step, (q, p), None, length=100)[0]
    return jnp.sum(q**2 + p**2)


def rk4(q, p, k):
    def slope(state):
        return state[1], force(state[0], k)

    def moved(state, by, slope):
        return tuple(x + by * dx for x, dx in zip(state, slope, strict=True))

    def step(state, _):
        k1 = slope(state)
        k2 = slope(moved(state, STEP / 2, k1))
        k3 = slope(moved(state, STEP / 2, k2))
        k4 = slope(moved(state, STEP, k3))
        mean = [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True)]
        return moved(state, STEP, mean), None

    q, p = jax.lax.scan(step, (q, p), None, length=100)[0]
    return jnp.sum(q**2 + p**2)


def laplacian(u):
    return jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)


def heat(u, rate):
    return jnp.sum(jax.lax.scan(lambda u, _: (u + rate * laplacian(u), None), u, None, length=200)[0] ** 2)


def heat_reaction(u, rate):
    def step(u, _):
        return u + rate * (laplacian(u) + u * (1 - u)), None

    return jnp.sum(jax.lax.scan(step, u, None, length=200)[0] ** 2)


def recurrent(gates: int, steps: int, batch: int, width: int, biases: int = 1) -> tuple[np.ndarray, ...]:
    """Parameters of a recurrent layer of as many inputs as outputs, and its inputs."""
    w, u, *rest = normal((width, gates * width), (width, gates * width), *[(gates * width,)] * biases, scale=0.08)
    return w, u, *rest, *normal((steps, batch, width))


def points():
    q, p = normal((POINTS,), (POINTS,))
    return q, p, (1 + q**2 / 10).astype(np.float32)


def on_a_line():
    (x,) = normal((POINTS,))
    return 1 / (1 + np.exp(-x)), np.float32(0.1)


ROWS = (
    Row(
        18,
        "lstm T100 B32 H128",
        lstm,
        lambda: recurrent(4, 100, 32, 128),
        (29.5, 36.4),
        wrt=(0, 1, 2),
        memory=(13.2, 23.0),
    ),
    Row(19, "rnn T500 B1 H256", rnn, lambda: recurrent(1, 500, 1, 256), (4.0, 6.75), wrt=(0, 1, 2)),
    Row(19, "lstm T200 B1 H256", lstm, lambda: recurrent(4, 200, 1, 256), (12.0, 17.8), wrt=(0, 1, 2)),
    Row(19, "gru T200 B4 H256", gru, lambda: recurrent(3, 200, 4, 256, 2), (28.5, 50.6), wrt=(0, 1, 2, 3)),
    Row(20, "leapfrog", leapfrog, points, (55, 546), wrt=(0, 1, 2), memory=(20, 162)),
    Row(20, "rk4", rk4, points, (170, 1390), wrt=(0, 1, 2), memory=(85, 322)),
    Row(21, "heat", heat, on_a_line, (68, 80), wrt=(0, 1), memory=(14, 82)),
    Row(21, "heat with u(1-u)", heat_reaction, on_a_line, (72, 200), wrt=(0, 1), memory=(14, 242)),
)
