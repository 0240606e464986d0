"""Claim: a scan's output that is only reduced costs what the loop with the reduction inside costs.

Every reduction that the issue lists: sum, mean over all and over some axes, squared error against a target, max, min,
argmax, logsumexp, variance, weighted sums and contractions over time. `L` steps of an elementwise or recurrent body;
each stack is 25 MB or more.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

L, B = 64, 102_400
SAVES = Bounds(memory_saving=L / 4)


def step(c):
    """A cheap elementwise map (memory traffic shows), neither chaotic nor constant (results can be compared)."""
    return c - 0.05 * c * c


def trajectory(x, length=L):
    return lax.scan(lambda c, _: (step(c), step(c)), x, None, length=length)[1]


def per_step(partial, finish, length=L):
    """Expert form: `partial` of each step's output is stacked, `finish` reduces the stack of partial results."""

    def f(x):
        def body(c, _):
            c = step(c)
            return c, partial(c)

        return finish(lax.scan(body, x, None, length=length)[1])

    return f


def carried(init, update, finish, length=L):
    """Expert form: an accumulator in the carry. `init(x)`, `update(accumulator, output, index)`, `finish(it)`."""

    def f(x):
        def body(state, i):
            c, acc = state
            c = step(c)
            return (c, update(acc, c, i)), None

        (_, acc), _ = lax.scan(body, (x, init(x)), jnp.arange(length))
        return finish(acc)

    return f


def in_blocks(reduce, blocks=16):
    """`reduce`, leaving 16 results: XLA's CPU backend spreads a reduction over cores only if an axis is left."""
    return lambda y: reduce(y.reshape(blocks, -1), axis=1)


def argmax_in_blocks(y, blocks=16):
    split = y.reshape(blocks, -1)
    where = jnp.argmax(split, 1)
    block = jnp.argmax(jnp.max(split, 1))
    return block * split.shape[1] + where[block]


def scalar(x):
    return jnp.zeros((), x.dtype)


def start(*shape):
    return lambda: (jax.random.uniform(jax.random.key(0), shape, minval=0.5, maxval=1.5),)


def combine_variances(partials):
    """Chan, Golub and LeVeque 1979: the variance of a union from the means and variances of its equal parts."""
    means, variances = partials
    return jnp.mean(variances) + jnp.var(means)


def welford(acc, y, i):
    mean, m2 = acc
    delta = y - mean
    mean = mean + delta / (i + 1)
    return mean, m2 + delta * (y - mean)


def online_logsumexp(acc, y, _):
    top, total = acc
    new = jnp.maximum(top, y)
    return new, total * jnp.exp(top - new) + jnp.exp(y - new)


def logsumexp_in_two_loops(x):
    """The maximum first, without a gradient of its own, then the shifted sum: twice the steps, no rescaling."""
    largest = carried(lambda x: jnp.full_like(x, -jnp.inf), lambda s, y, _: jnp.maximum(s, y), lambda s: s)
    top = lax.stop_gradient(largest(lax.stop_gradient(x)))
    return top + jnp.log(carried(jnp.zeros_like, lambda s, y, _: s + jnp.exp(y - top), lambda s: s)(x))


def first_argmax(acc, y, i):
    best, where = acc
    better = y > best
    return jnp.where(better, y, best), jnp.where(better, i, where)


REDUCTIONS = (
    Case(
        "sum over all",
        lambda x: jnp.sum(trajectory(x)),
        {
            "partial per step": per_step(jnp.sum, jnp.sum),
            "16 partials per step": per_step(in_blocks(jnp.sum), jnp.sum),
            "scalar carry": carried(scalar, lambda s, y, _: s + jnp.sum(y), lambda s: s),
            "array carry": carried(jnp.zeros_like, lambda s, y, _: s + y, jnp.sum),
        },
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "mean over all",
        lambda x: jnp.mean(trajectory(x)),
        {
            "partial per step": per_step(jnp.mean, jnp.mean),
            "16 partials per step": per_step(in_blocks(jnp.mean), jnp.mean),
            "scalar carry": carried(scalar, lambda s, y, _: s + jnp.sum(y), lambda s: s / (L * B)),
        },
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "mean over time",
        lambda x: jnp.mean(trajectory(x), 0),
        {"array carry": carried(jnp.zeros_like, lambda s, y, _: s + y, lambda s: s / L)},
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "mean over time and one more axis",
        lambda x: jnp.mean(trajectory(x), (0, 2)),
        {
            "partial per step": per_step(lambda y: jnp.mean(y, 1), lambda p: jnp.mean(p, 0)),
            "carried partial": carried(
                lambda x: jnp.zeros(x.shape[:1]), lambda s, y, _: s + jnp.sum(y, 1), lambda s: s / (L * 100)
            ),
            "array carry": carried(jnp.zeros_like, lambda s, y, _: s + y, lambda s: jnp.mean(s, 1) / L),
        },
        start(B // 100, 100),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "mean over batch, time kept",
        lambda x: jnp.mean(trajectory(x), 1),
        {"partial per step": per_step(jnp.mean, lambda p: p)},
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "max over time of points",
        lambda x: jnp.max(trajectory(x), 0),
        {"array carry": carried(lambda x: jnp.full_like(x, -jnp.inf), lambda s, y, _: jnp.maximum(s, y), lambda s: s)},
        start(B // 3, 3),
        bounds=SAVES,
    ),
    Case(
        "max over all",
        lambda x: jnp.max(trajectory(x)),
        {
            "partial per step": per_step(jnp.max, jnp.max),
            "16 partials per step": per_step(in_blocks(jnp.max), jnp.max),
            "scalar carry": carried(
                lambda x: scalar(x) - jnp.inf, lambda s, y, _: jnp.maximum(s, jnp.max(y)), lambda s: s
            ),
            "array carry": carried(lambda x: jnp.full_like(x, -jnp.inf), lambda s, y, _: jnp.maximum(s, y), jnp.max),
        },
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "max over time",
        lambda x: jnp.max(trajectory(x), 0),
        {"array carry": carried(lambda x: jnp.full_like(x, -jnp.inf), lambda s, y, _: jnp.maximum(s, y), lambda s: s)},
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "min over all",
        lambda x: jnp.min(trajectory(x)),
        {
            "partial per step": per_step(jnp.min, jnp.min),
            "16 partials per step": per_step(in_blocks(jnp.min), jnp.min),
            "array carry": carried(lambda x: jnp.full_like(x, jnp.inf), lambda s, y, _: jnp.minimum(s, y), jnp.min),
        },
        start(B),
        bounds=SAVES,
    ),
    Case(
        "argmax over time",
        lambda x: jnp.argmax(trajectory(x), 0),
        {
            "carried best and index": carried(
                lambda x: (jnp.full_like(x, -jnp.inf), jnp.zeros(x.shape, jnp.int32)), first_argmax, lambda acc: acc[1]
            )
        },
        start(B),
        bounds=SAVES,
    ),
    Case(
        "argmax over batch, time kept",
        lambda x: jnp.argmax(trajectory(x), 1),
        {
            "partial per step": per_step(jnp.argmax, lambda p: p),
            "16 partials per step": per_step(argmax_in_blocks, lambda p: p),
        },
        start(B),
        bounds=SAVES,
    ),
    Case(
        "mean of products with the start, time kept",
        lambda x: jnp.mean(trajectory(x) * x, -1),
        {
            "partial per step": lambda x: per_step(lambda y: jnp.mean(y * x), lambda p: p)(x),
            "16 partials per step": lambda x: per_step(lambda y: in_blocks(jnp.mean)(y * x), lambda p: p.mean(-1))(x),
        },
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "whether there is a nan",
        lambda x: jnp.any(jnp.isnan(trajectory(x))),
        {
            "partial per step": per_step(lambda y: jnp.any(jnp.isnan(y)), jnp.any),
            "array carry": carried(lambda x: x != x, lambda acc, y, _: acc | (y != y), jnp.any),
        },
        start(B),
        bounds=SAVES,
    ),
    Case(
        "logsumexp over all",
        lambda x: jax.nn.logsumexp(trajectory(x)),
        {"partial per step": per_step(jax.nn.logsumexp, jax.nn.logsumexp)},
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "logsumexp over time",
        lambda x: jax.nn.logsumexp(trajectory(x), 0),
        {
            "carried maximum and sum": carried(
                lambda x: (jnp.full_like(x, -jnp.inf), jnp.zeros_like(x)),
                online_logsumexp,
                lambda acc: acc[0] + jnp.log(acc[1]),
            ),
            "two loops": logsumexp_in_two_loops,
        },
        start(B),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "variance over all",
        lambda x: jnp.var(trajectory(x)),
        {
            "mean and variance per step": per_step(lambda y: (jnp.mean(y), jnp.var(y)), combine_variances),
            "shifted sums": carried(
                lambda x: (scalar(x), scalar(x)),
                lambda s, y, _: (s[0] + jnp.sum(y - 0.5), s[1] + jnp.sum((y - 0.5) ** 2)),
                lambda s: s[1] / (L * B) - (s[0] / (L * B)) ** 2,
            ),
        },
        start(B),
        grad=(0,),
        bounds=SAVES,
        notes="shifted sums know a good shift beforehand, which a compiler does not",
    ),
    Case(
        "variance over time",
        lambda x: jnp.var(trajectory(x), 0),
        {
            "Welford": carried(lambda x: (jnp.zeros_like(x), jnp.zeros_like(x)), welford, lambda acc: acc[1] / L),
            "shifted sums": carried(
                lambda x: (x, jnp.zeros_like(x), jnp.zeros_like(x)),
                lambda s, y, _: (s[0], s[1] + (y - s[0]), s[2] + (y - s[0]) ** 2),
                lambda s: s[2] / L - (s[1] / L) ** 2,
            ),
        },
        start(B),
        grad=(0,),
        bounds=SAVES,
        notes="the shift of the shifted sums is the initial state: free of memory, good here, and wrong in every digit "
        "where the states go far from it; Aerogel keeps the first output, one array more",
    ),
    Case(
        "weighted sum over time",
        lambda x, w: jnp.sum(w[:, None] * trajectory(x), 0),
        {
            "array carry": lambda x, w: lax.scan(
                lambda s, w: ((step(s[0]), s[1] + w * step(s[0])), None), (x, jnp.zeros_like(x)), w
            )[0][1]
        },
        lambda: (*start(B)(), normal(1, L)),
        grad=(0, 1),
        bounds=SAVES,
    ),
    Case(
        "tensordot over time",
        lambda x, w: jnp.tensordot(w, trajectory(x), 1),
        {
            "array carry": lambda x, w: lax.scan(
                lambda s, w: ((step(s[0]), s[1] + w * step(s[0])), None), (x, jnp.zeros_like(x)), w
            )[0][1]
        },
        lambda: (*start(B)(), normal(1, L)),
        grad=(0, 1),
        bounds=SAVES,
    ),
    Case(
        "einsum over time against a probe",
        lambda x, q: jnp.einsum("tbd,td->b", trajectory(x), q),
        {
            "carried product": lambda x, q: lax.scan(
                lambda s, q: ((step(s[0]), s[1] + step(s[0]) @ q), None), (x, jnp.zeros(x.shape[0])), q
            )[0][1],
            "array carry": lambda x, q: jnp.sum(
                lax.scan(lambda s, q: ((step(s[0]), s[1] + step(s[0]) * q), None), (x, jnp.zeros_like(x)), q)[0][1], 1
            ),
        },
        lambda: (*start(B // 100, 100)(), normal(1, L, 100)),
        grad=(0, 1),
        bounds=SAVES,
    ),
    Case(
        "einsum over time and batch (second moment)",
        lambda x: jnp.einsum("tbd,tbe->de", trajectory(x), trajectory(x)),
        {"carried product": carried(lambda x: jnp.zeros((x.shape[1],) * 2), lambda s, y, _: s + y.T @ y, lambda s: s)},
        start(2048, 50),
        grad=(0,),
        bounds=SAVES,
    ),
)


def rnn_natural(w, h, xs, targets):
    def body(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h

    return jnp.mean(jnp.square(lax.scan(body, h, xs)[1] - targets))


def rnn_partial(w, h, xs, targets):
    def body(h, inputs):
        x, target = inputs
        h = jnp.tanh(h @ w + x)
        return h, jnp.mean(jnp.square(h - target))

    return jnp.mean(lax.scan(body, h, (xs, targets))[1])


def rnn_carry(w, h, xs, targets):
    def body(state, inputs):
        (h, total), (x, target) = state, inputs
        h = jnp.tanh(h @ w + x)
        return (h, total + jnp.sum(jnp.square(h - target), 0)), None

    return jnp.sum(lax.scan(body, (h, jnp.zeros(h.shape[1])), (xs, targets))[0][1]) / targets.size


LOSSES = (
    Case(
        "squared error against a target, elementwise",
        lambda x, targets: jnp.mean(jnp.square(trajectory(x) - targets)),
        {
            "partial per step": lambda x, targets: jnp.mean(
                lax.scan(lambda c, t: (step(c), jnp.mean(jnp.square(step(c) - t))), x, targets)[1]
            ),
            "array carry": lambda x, targets: (
                jnp.mean(
                    lax.scan(
                        lambda s, t: ((step(s[0]), s[1] + jnp.square(step(s[0]) - t)), None),
                        (x, jnp.zeros_like(x)),
                        targets,
                    )[0][1]
                )
                / L
            ),
        },
        lambda: (*start(B)(), normal(1, L, B)),
        grad=(0,),
        bounds=SAVES,
    ),
    Case(
        "squared error against a target, recurrent network",
        rnn_natural,
        {"partial per step": rnn_partial, "carried partial": rnn_carry},
        lambda: (normal(1, 64, 64) / 8, jnp.zeros((512, 64)), normal(2, 128, 512, 64), normal(3, 128, 512, 64)),
        grad=(0,),
        bounds=Bounds(memory_saving=128 / 4),
    ),
)

CASES = REDUCTIONS + LOSSES
