"""Claim: a loop whose step cuts its input into gates costs what the loop that is given each gate by itself costs.

Recurrent cells as libraries write them: the input projection is made before the loop, the step adds the state's product
and splits the sum. XLA's CPU backend does not compute on vectors what is a piece of a step's entry. An expert splits
the input before the loop.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Case, normal

T, H = 100, 128


def sums(parts, wh, h):
    return [a + b for a, b in zip(parts, jnp.split(h @ wh, len(parts), -1), strict=True)]


def lstm(gates, c):
    i, f, o, u = gates
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm_natural(wh, zs, h):
    def body(state, z):
        h, c = lstm(jnp.split(z + state[0] @ wh, 4, -1), state[1])
        return (h, c), h

    return lax.scan(body, (h, h), zs)[1]


def lstm_by_hand(wh, zs, h):
    def body(state, parts):
        h, c = lstm(sums(parts, wh, state[0]), state[1])
        return (h, c), h

    return lax.scan(body, (h, h), tuple(jnp.split(zs, 4, -1)))[1]


def gru(ours, theirs, h):
    reset, update = (jax.nn.sigmoid(a + b) for a, b in zip(ours[:2], theirs[:2], strict=True))
    return (1 - update) * jnp.tanh(ours[2] + reset * theirs[2]) + update * h


def gru_natural(wh, zs, h):
    return lax.scan(lambda h, z: (gru(jnp.split(z, 3, -1), jnp.split(h @ wh, 3, -1), h),) * 2, h, zs)[1]


def gru_by_hand(wh, zs, h):
    parts = tuple(jnp.split(zs, 3, -1))
    return lax.scan(lambda h, z: (gru(z, jnp.split(h @ wh, 3, -1), h),) * 2, h, parts)[1]


def case(name, natural, hand, gates, batch):
    def args():
        return normal(0, H, gates * H) / H**0.5, normal(1, T, batch, gates * H), jnp.zeros((batch, H))

    # By hand the input is copied; Aerogel copies nothing.
    return Case(f"{name}, batch {batch}", natural, {"split before the loop": hand}, args, (0, 1))


CASES = tuple(
    case(*cell, batch)
    for cell in (("LSTM", lstm_natural, lstm_by_hand, 4), ("GRU", gru_natural, gru_by_hand, 3))
    for batch in (1, 16, 64)
)
