"""Claim: work that does not depend on a loop's carry leaves the loop where that is faster, and stays where it is not.

Input projections of recurrent cells at several batch sizes, an embedding network applied to each input, random
numbers drawn per step. The yardstick is the faster of the natural and the hoisted form (hoisting costs memory, so
only time is bounded).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

T, D, H = 200, 256, 128
TIME_ONLY = Bounds(memory_over_hand=None)


def lstm(gates, c):
    i, f, o, u = jnp.split(gates, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm_natural(wi, wh, b, xs, h):
    def body(state, x):
        h, c = lstm(x @ wi + state[0] @ wh + b, state[1])
        return (h, c), h

    return lax.scan(body, (h, h), xs)[1]


def lstm_hoisted(wi, wh, b, xs, h):
    def body(state, gates):
        h, c = lstm(gates + state[0] @ wh, state[1])
        return (h, c), h

    return lax.scan(body, (h, h), xs @ wi + b)[1]


def lstm_case(batch):
    lead = (batch,) if batch else ()

    def args():
        return (
            normal(0, D, 4 * H) / D**0.5,
            normal(1, H, 4 * H) / H**0.5,
            jnp.zeros(4 * H),
            normal(2, T, *lead, D),
            jnp.zeros((*lead, H)),
        )

    return Case(
        f"input projection of an LSTM, {f'batch {batch}' if batch else 'one sequence'}",
        lstm_natural,
        {"hoisted": lstm_hoisted, "as it stands": lstm_natural},
        args,
        (0, 1, 2),
        bounds=TIME_ONLY,
        grad_bounds=TIME_ONLY,
    )


def embed(w1, w2, x):
    return jnp.tanh(jnp.tanh(x @ w1) @ w2)


def embedding_natural(w1, w2, wh, xs, h):
    return lax.scan(lambda h, x: (jnp.tanh(embed(w1, w2, x) + h @ wh),) * 2, h, xs)[1]


def embedding_hoisted(w1, w2, wh, xs, h):
    return lax.scan(lambda h, e: (jnp.tanh(e + h @ wh),) * 2, h, embed(w1, w2, xs))[1]


def noise_natural(keys, x):
    def body(x, key):
        x = 0.99 * x + 0.1 * jax.random.normal(key, x.shape)
        return x, x

    return lax.scan(body, x, keys)[1]


def noise_hoisted(keys, x):
    noise = jax.vmap(lambda key: jax.random.normal(key, x.shape))(keys)
    return lax.scan(lambda x, n: (0.99 * x + 0.1 * n,) * 2, x, noise)[1]


def split_natural(key, x):
    def body(state, _):
        key, x = state
        key, now = jax.random.split(key)
        x = 0.99 * x + 0.1 * jax.random.normal(now, x.shape)
        return (key, x), x

    return lax.scan(body, (key, x), None, length=1000)[1]


def split_hoisted(key, x):
    keys = lax.scan(lambda key, _: tuple(jax.random.split(key)), key, None, length=1000)[1]
    return noise_hoisted(keys, x)


def noise_case(size):
    return Case(
        f"random numbers from a key per step, size {size}",
        noise_natural,
        {"hoisted": noise_hoisted, "as it stands": noise_natural},
        lambda: (jax.random.split(jax.random.key(0), 1000), jnp.zeros(size)),
        bounds=TIME_ONLY,
    )


def split_case(size):
    return Case(
        f"random numbers from a key split per step, size {size}",
        split_natural,
        {"hoisted": split_hoisted, "as it stands": split_natural},
        lambda: (jax.random.key(0), jnp.zeros(size)),
        bounds=TIME_ONLY,
    )


def head_natural(wh, wo, xs, h):
    def body(h, x):
        h = jnp.tanh(x + h @ wh)
        return h, jax.nn.softmax(h @ wo)

    return lax.scan(body, h, xs)[1]


def head_hoisted(wh, wo, xs, h):
    def body(h, x):
        h = jnp.tanh(x + h @ wh)
        return h, h

    return jax.nn.softmax(lax.scan(body, h, xs)[1] @ wo)


CASES = (
    Case(
        "ten classes of one row in each step",
        head_natural,
        {"hoisted": head_hoisted},
        lambda: (normal(0, 96, 96) / 10, normal(1, 96, 10), normal(2, 400, 1, 96), jnp.zeros((1, 96))),
        (0, 1, 2),
        bounds=TIME_ONLY,
        grad_bounds=TIME_ONLY,
    ),
    lstm_case(0),
    lstm_case(1),
    lstm_case(16),
    lstm_case(64),
    Case(
        "embedding network on each input",
        embedding_natural,
        {"hoisted": embedding_hoisted, "as it stands": embedding_natural},
        lambda: (
            normal(3, D, 256) / 16,
            normal(4, 256, H) / 16,
            normal(5, H, H) / H**0.5,
            normal(2, T, D),
            jnp.zeros(H),
        ),
        (0, 1, 2),
        bounds=TIME_ONLY,
        grad_bounds=TIME_ONLY,
    ),
    noise_case(3),
    noise_case(64),
    noise_case(1024),
    split_case(3),
    split_case(64),
    split_case(1024),
)
