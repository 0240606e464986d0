"""Claim: a formula over all pairs of N = M things takes the time and memory of the blocks that an expert cuts.

Memory at most 1/30 of plain JAX's for the value and 1/15 for value and gradient, time at most 0.85 and 1.05 (issue 5).
N is 8192, and 4096 where that is large enough to show it. The expert's forms map over blocks of rows under
`jax.checkpoint`, with coordinates taken apart. Where plain JAX's value alone has no array in its temporary memory (it
fuses, or keeps it to itself), there is no bound on memory.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

N = 8192


def points(n=N):
    return normal(1, n, 3), normal(2, n, 3), normal(3, n)


def tokens(n=N):
    return tuple(0.3 * normal(k, n, 64) for k in range(3))


def tokens_and_table(n=N):
    return *tokens(n), normal(4, 2 * n - 1)


def heads(n=N):
    return tuple(normal(k, 1, n, 4, 64) for k in range(3))


def examples(n=N):
    return (0.1 * normal(1, 64, 128), 0.1 * normal(2, 128)), normal(3, n, 64), normal(4, n)


def coordinates(n=N):
    return tuple(normal(k, n) for k in range(3))


def squared(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def apart(x, y):
    return sum((x[:, None, k] - y[None, :, k]) ** 2 for k in range(3))


def by_product(x, y):
    """Squared distances, by the product that a library would be called for."""
    return (x * x).sum(-1)[:, None] + (y * y).sum(-1) - 2 * x @ y.T


def by_rows(f, size):
    """`f(rows, y, v)` for blocks of rows."""

    def whole(x, y, v):
        out = lax.map(jax.checkpoint(lambda rows: f(rows, y, v)), x.reshape(-1, size, x.shape[1]))
        return out.reshape(len(x), *out.shape[2:])

    return whole


def gaussian(distance):
    return lambda x, y, v: jnp.exp(-0.5 * distance(x, y)) @ v


def nearest(distance):
    return lambda x, y, v: distance(x, y).min(1)


def embedding(x, y, v):
    """t-SNE's similarities without those of points to themselves, and how two sides of them pull."""
    near = jnp.fill_diagonal(1 / (1 + by_product(x, x)), 0.0, inplace=False)
    return (near @ v) / near.sum()


def embedding_by_rows(x, y, v):
    def rows(inputs):
        places, rows = inputs
        near = jnp.where(places[:, None] == jnp.arange(len(x)), 0.0, 1 / (1 + apart(rows, x)))
        return near @ v, near.sum()

    pulled, total = lax.map(jax.checkpoint(rows), (jnp.arange(len(x)).reshape(-1, 64), x.reshape(-1, 64, x.shape[1])))
    return pulled.reshape(-1) / total.sum()


def forces(x, y, v):
    d = y[None] - x[:, None]
    return (d * (v[None] / ((d**2).sum(-1) + 1e-2))[..., None]).sum(1)


def forces_apart(x, y, v):
    d = [y[None, :, k] - x[:, None, k] for k in range(3)]
    w = v[None] / (sum(one**2 for one in d) + 1e-2)
    return jnp.stack([(one * w).sum(1) for one in d], -1)


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / 8, axis=-1) @ v


def with_bias(q, k, v, table):
    i = jnp.arange(len(q))
    return jax.nn.softmax(q @ k.T / 8 + table[i[:, None] - i[None] + len(q) - 1], axis=-1) @ v


def with_bias_by_rows(q, k, v, table):
    def rows(inputs):
        start, q = inputs
        places = (start + jnp.arange(256))[:, None] - jnp.arange(len(k))[None] + len(k) - 1
        return jax.nn.softmax(q @ k.T / 8 + table[places], axis=-1) @ v

    starts = jnp.arange(0, len(q), 256)
    return lax.map(jax.checkpoint(rows), (starts, q.reshape(-1, 256, 64))).reshape(q.shape)


def causal(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def causal_by_rows(q, k, v):
    def rows(k, v, inputs):
        start, q = inputs
        seen = (start + jnp.arange(256))[:, None] >= jnp.arange(len(k))[None]
        return jax.nn.softmax(jnp.where(seen, q @ k.T / 8, -1e30), axis=-1) @ v

    def head(inputs):
        q, k, v = inputs
        starts = jnp.arange(0, len(q), 256)
        return lax.map(jax.checkpoint(partial(rows, k, v)), (starts, q.reshape(-1, 256, 64))).reshape(q.shape)

    return lax.map(head, tuple(x[0].swapaxes(0, 1) for x in (q, k, v))).swapaxes(0, 1)[None]


def chamfer(x, y, v):
    d = squared(x, y)
    return d.min(1).mean() + (v * d.min(0)).mean()


def chamfer_by_rows(x, y, v):
    """Looks for the nearest by rows, both ways; the gradient is of the distances to these."""

    def nearest(x, y):
        one = lambda rows: apart(rows, y).argmin(1)  # noqa: E731
        return lax.map(one, lax.stop_gradient(x).reshape(-1, 64, 3)).reshape(-1)

    to_y, to_x = y[nearest(x, lax.stop_gradient(y))], x[nearest(y, lax.stop_gradient(x))]
    return ((x - to_y) ** 2).sum(-1).mean() + (v * ((y - to_x) ** 2).sum(-1)).mean()


def loss(weights, x, y):
    return (jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2


def clipped(weights, x, y):
    """The sum of the gradients of all examples, each scaled to a norm of one at most (DP-SGD)."""
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, x, y)
    norms = jnp.sqrt(sum((g**2).reshape(len(x), -1).sum(1) for g in gradients))
    return jax.tree.map(lambda g: jnp.tensordot(jnp.minimum(1, 1 / norms), g, 1), gradients)


def divided(weights, x, y):
    """The same, written for one example: its gradient divided by its norm, where that is more than one."""

    def one(x, y):
        g = jax.grad(loss)(weights, x, y)
        return jax.tree.map(lambda t: t / jnp.maximum(1, jnp.sqrt(sum(jnp.vdot(t, t) for t in g))), g)

    return jax.tree.map(lambda t: t.sum(0), jax.vmap(one)(x, y))


def clipped_by_rows(weights, x, y):
    def step(total, block):
        return jax.tree.map(jnp.add, total, clipped(weights, *block)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, weights), (x.reshape(-1, 64, 64), y.reshape(-1, 64)))[0]


def field(w, x):
    return jnp.tanh(w * jnp.roll(x, 1)) + x * jnp.sin(x)


def jacobian_times_vector(w, x, v):
    return jax.jacrev(partial(field, w))(x) @ v


def jacobian_by_rows(w, x, v):
    _, back = jax.vjp(partial(field, w), x)

    def rows(start):
        return jax.vmap(lambda i: back(jnp.zeros_like(x).at[i].set(1))[0])(start + jnp.arange(64)) @ v

    return lax.map(jax.checkpoint(rows), jnp.arange(0, len(x), 64)).reshape(-1)


def sinkhorn(x, y, v):
    """Ten steps of entropic transport between two clouds; all distances are made once."""
    costs = ((x[:, None] - y) ** 2).sum(-1)

    def step(g, _):
        f = -0.1 * jax.nn.logsumexp((g - costs) / 0.1, axis=1)
        return -0.1 * jax.nn.logsumexp((f[:, None] - costs) / 0.1, axis=0), f

    g, f = lax.scan(step, v, None, length=10)
    return f[-1].mean() + g.mean()


def sinkhorn_plan(x, y, v):
    """The same with the costs of the plan."""
    costs = ((x[:, None] - y) ** 2).sum(-1)

    def step(_, state):
        f = -0.1 * jax.nn.logsumexp((state[1] - costs) / 0.1, axis=1)
        return f, -0.1 * jax.nn.logsumexp((f[:, None] - costs) / 0.1, axis=0)

    f, g = lax.fori_loop(0, 10, step, (jnp.zeros_like(v), v))
    return jnp.sum(jnp.exp((f[:, None] + g - costs) / 0.1) * costs)


def softmin_by_rows(x, y, g):
    """`-0.1 log(sum(exp((g - costs) / 0.1)))`, of the rows of `x`."""
    one = lambda rows: -0.1 * jax.nn.logsumexp((g - apart(rows, y)) / 0.1, axis=1)  # noqa: E731
    return lax.map(jax.checkpoint(one), x.reshape(-1, 64, 3)).reshape(-1)


def sinkhorn_by_rows(x, y, v):
    @jax.checkpoint
    def step(g, _):
        f = softmin_by_rows(x, y, g)
        return softmin_by_rows(y, x, f), f

    g, f = lax.scan(step, v, None, length=10)
    return f[-1].mean() + g.mean()


def sinkhorn_plan_by_rows(x, y, v):
    @jax.checkpoint
    def step(state, _):
        f = softmin_by_rows(x, y, state[1])
        return (f, softmin_by_rows(y, x, f)), None

    (f, g), _ = lax.scan(step, (jnp.zeros_like(v), v), None, length=10)

    def costs(rows, own):
        d = apart(rows, y)
        return jnp.sum(jnp.exp((own[:, None] + g - d) / 0.1) * d)

    return lax.map(jax.checkpoint(lambda row: costs(*row)), (x.reshape(-1, 64, 3), f.reshape(-1, 64))).sum()


def case(name, natural, forms, args, grad, saving):
    value = Bounds(over_natural=0.85, memory_over_hand=None, memory_saving=saving)
    gradient = Bounds(over_natural=1.05, memory_over_hand=None, memory_saving=15)
    return Case(name, natural, {"blocks of rows": forms}, args, grad, bounds=value, grad_bounds=gradient)


FEWER = N // 2
CASES = (
    case("Gaussian kernel times a vector", gaussian(squared), by_rows(gaussian(apart), 64), points, (0, 1, 2), 30),
    case(
        "Gaussian kernel by a product",
        gaussian(by_product),
        by_rows(gaussian(apart), 64),
        partial(points, FEWER),
        (0, 1, 2),
        30,
    ),
    case("t-SNE by a product", embedding, embedding_by_rows, partial(points, FEWER), (0, 2), 30),
    case("nearest neighbour", nearest(squared), by_rows(nearest(apart), 64), points, (0, 1), None),
    case("N-body forces", forces, by_rows(forces_apart, 64), points, (0, 1, 2), None),
    case("Chamfer distance", chamfer, chamfer_by_rows, partial(points, FEWER), (0, 1), 30),
    case("attention", attention, by_rows(attention, 256), tokens, (0, 1, 2), None),
    case("attention with a bias by index", with_bias, with_bias_by_rows, tokens_and_table, (0, 1, 2, 3), 30),
    case("causal attention, four heads", causal, causal_by_rows, heads, (), 30),
    case("clipped gradients of examples", clipped, clipped_by_rows, examples, (), 30),
    case("gradients of examples, divided by norms", divided, clipped_by_rows, examples, (), 30),
    case("Sinkhorn's steps", sinkhorn, sinkhorn_by_rows, partial(points, FEWER), (0, 1), 30),
    case("Sinkhorn's steps and plan", sinkhorn_plan, sinkhorn_plan_by_rows, partial(points, FEWER), (0, 1), 30),
    case("a Jacobian times a vector", jacobian_times_vector, jacobian_by_rows, partial(coordinates, FEWER), (0, 1), 30),
)
