"""Programs of a size that a GPU is used for, as users write them; `python -m benchmarks.gpu` measures them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Case

BF16 = jnp.bfloat16


def normal(seed: int, *shape: int, dtype=jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def attention(q, k, v, *, causal=False):
    """Softmax attention over [batch, place, head, depth]."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / 8
    if causal:
        places = jnp.arange(q.shape[1])
        scores = jnp.where(places[:, None] >= places, scores, -jnp.inf)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, -1), v)


def lstm(params, xs):
    wx, wh, b = params

    def step(carry, x):
        h, s = carry
        i, f, g, o = jnp.split(x @ wx + h @ wh + b, 4, -1)
        s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(s)
        return (h, s), h

    zero = jnp.zeros((xs.shape[1], wh.shape[0]), xs.dtype)
    return lax.scan(step, (zero, zero), xs)[1]


def lstm_args(steps, batch, inputs, hidden):
    wx, wh = normal(0, inputs, 4 * hidden) / inputs**0.5, normal(1, hidden, 4 * hidden) / hidden**0.5
    return (wx, wh, normal(2, 4 * hidden)), normal(3, steps, batch, inputs)


def normed(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(p, x):
    b, t, d = x.shape
    q, k, v = jnp.split((normed(x) @ p["qkv"]).reshape(b, t, 36, -1), 3, 2)
    x = x + attention(q, k, v, causal=True).reshape(b, t, d) @ p["out"]
    return x + jax.nn.gelu(normed(x) @ p["up"]) @ p["down"]


def transformer(layers, x):
    return lax.scan(lambda x, p: (block(p, x), None), x, layers)[0]


def one_by_one(layers, x):
    for k in range(len(layers["qkv"])):
        x = block({name: p[k] for name, p in layers.items()}, x)
    return x


def checkpointed(layers, x):
    return lax.scan(lambda x, p: (jax.checkpoint(block)(p, x), None), x, layers)[0]


def mesh(x, rest):
    """The energy of elements, each with the inverse of a matrix of 3 x 3 of its corners at rest."""

    def element(x, rest):
        f = (x[1:] - x[0]).T @ jnp.linalg.inv((rest[1:] - rest[0]).T + 3 * jnp.eye(3))
        return jnp.trace(f.T @ f) + (jnp.linalg.det(f) - 1) ** 2

    return jax.vmap(element)(x, rest).sum()


def transformer_args(n, d, dtype):
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    layers = {
        name: normal(k, n, *shape, dtype=dtype) / shape[0] ** 0.5 for k, (name, shape) in enumerate(shapes.items())
    }
    return layers, normal(5, 8, 1024, d, dtype=dtype)


def heat(u):
    def step(u, _):
        around = sum(jnp.roll(u, s, a) for s in (1, -1) for a in (0, 1))
        return u + 0.1 * (around - 4 * u), u.mean()

    return lax.scan(step, u, None, length=200)[1]


def runge_kutta(w, y):
    def f(y):
        return jnp.tanh(y @ w)

    def step(y, _):
        k1 = f(y)
        k2 = f(y + 0.05 * k1)
        k3 = f(y + 0.05 * k2)
        k4 = f(y + 0.1 * k3)
        return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), y

    return lax.scan(step, y, None, length=100)[1]


def state_space(a, x):
    def step(h, ax):
        h = ax[0] * h + ax[1]
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), (a, x))[1]


def gaussian(x, y, v):
    return jnp.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)) @ v


def random_walk(key, x):
    def step(carry, _):
        key, sub = jax.random.split(carry[0])
        x = 0.99 * carry[1] + 0.1 * jax.random.normal(sub, carry[1].shape)
        return (key, x), x

    return lax.scan(step, (key, x), None, length=1000)[1]


def heads(batch, places, n, depth, dtype):
    return tuple(normal(k, batch, places, n, depth, dtype=dtype) for k in range(3))


def points(n):
    return normal(1, n, 3), normal(2, n, 3), normal(3, n)


def states(n, m):
    return normal(0, n, n) / n**0.5, normal(1, m, n)


LONG = partial(heads, 8, 2048, 16, 64)
BY_JAX = partial(jax.nn.dot_product_attention, is_causal=True)
CUDNN = partial(jax.nn.dot_product_attention, scale=1 / 8, implementation="cudnn")
BY_CUDNN, CAUSAL_BY_CUDNN = {"cuDNN by name": CUDNN}, {"cuDNN by name": partial(CUDNN, is_causal=True)}
BLOCKS = partial(transformer_args, 4, 768, BF16)
STATES = {n: partial(states, n, m) for n, m in ((64, 1024), (512, 4096))}
CASES = (
    Case("attention, 16 heads, 8 x 2048 places", attention, BY_CUDNN, partial(LONG, BF16), grad=(0, 1, 2)),
    Case("the same, causal", partial(attention, causal=True), CAUSAL_BY_CUDNN, partial(LONG, BF16), grad=(0, 1, 2)),
    Case("the same by jax.nn", BY_JAX, CAUSAL_BY_CUDNN, partial(LONG, BF16), grad=(0, 1, 2)),
    Case("the same in float32", partial(attention, causal=True), {}, partial(LONG, jnp.float32)),
    Case("4 blocks of a transformer, 768 wide", transformer, {}, BLOCKS, grad=(0,)),
    Case("the same blocks, one by one", one_by_one, {}, BLOCKS, grad=(0,)),
    Case("the same blocks, with checkpoints", checkpointed, {}, BLOCKS, grad=(0,)),
    Case("80,000 elements of a mesh", mesh, {}, lambda: (normal(0, 80_000, 4, 3), normal(1, 80_000, 4, 3)), grad=(0,)),
    Case("LSTM of 512, batch 256, 100 steps", lstm, {}, partial(lstm_args, 100, 256, 128, 512), grad=(0,)),
    Case("LSTM of 128, batch 32, 100 steps", lstm, {}, partial(lstm_args, 100, 32, 28, 128), grad=(0,)),
    Case("heat, 1024 x 1024", heat, {}, lambda: (normal(0, 1024, 1024),), grad=(0,)),
    Case("heat, 128 x 128", heat, {}, lambda: (normal(0, 128, 128),), grad=(0,)),
    Case("Runge-Kutta, 1024 states of 64", runge_kutta, {}, STATES[64], grad=(0,)),
    Case("Runge-Kutta, 4096 states of 512", runge_kutta, {}, STATES[512], grad=(0,)),
    Case("state space", state_space, {}, lambda: (abs(normal(0, 1000, 4096)) / 4, normal(1, 1000, 4096)), grad=(1,)),
    Case("random walk in 4096 dimensions", random_walk, {}, lambda: (jax.random.key(0), normal(1, 4096)), grad=(1,)),
    Case("Gaussian kernel, 8192 points", gaussian, {}, partial(points, 8192), grad=(0, 2)),
    Case("Gaussian kernel, 32,768 points", gaussian, {}, partial(points, 32768), grad=(2,)),
)
