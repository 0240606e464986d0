"""The laws of passes (`Pass` in compiler/pipeline.py), for every default pass on a corpus of programs."""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, evaluate, evaluate_around, scan_counts
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.judging.agree import compare, float64_reference
from aerogel.compiler.judging.check import check_program
from aerogel.compiler.networks import attention_call, attention_layout
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes.fused_attention import FusedAttention
from aerogel.compiler.passes.late_writes import LateWrites
from aerogel.compiler.passes.loop_segments import LoopSegments
from aerogel.compiler.passes.loop_unroll import LoopUnroll
from aerogel.compiler.passes.memory_limit import MemoryLimit
from aerogel.compiler.passes.short_calls import ShortCalls
from aerogel.compiler.pipeline import Context, Pass, has_its_turn
from aerogel.compiler.report import Decision
from aerogel.transform.better import keeps_derivatives
from compiler.loop_patterns import PATTERNS, SMALL_STATE, SURROUNDINGS, normal, with_gradient
from compiler.programs_of import FAST, STRICT
from strategies import draw_program

DRAWN = range(40)
MOST = 7  # programs of which gradients are taken, for one pass: they take long
HERE = Path(__file__).parent


pytestmark = pytest.mark.usefixtures("widens_bfloat16")


def recurrent(wi: Any, wh: Any, xs: Any) -> Any:
    """A layer whose input products depend on no state."""

    def body(h: Any, x: Any) -> Any:
        h = jnp.tanh(x @ wi + h @ wh)
        return h, h

    return jax.lax.scan(body, jnp.zeros(128), xs)[1]


def gated(w: Any, xs: Any) -> Any:
    """Steps that multiply with an orthogonal factor of the weights, or do nothing."""

    def step(c: Any, x: Any) -> Any:
        return jax.lax.cond(x[0] > 0, lambda: jnp.tanh(jnp.linalg.qr(w)[0] @ c + x), lambda: c), None

    return jax.lax.scan(step, xs[0], xs)[0].sum()


def branch(w: Any, taken: Any, x: Any) -> Any:
    """A dear branch that closes over weights, for lanes that take it or not."""
    dear = lambda x: jnp.tanh(jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w) @ w)  # noqa: E731
    return jax.lax.cond(taken, dear, lambda x: 2 * x, x)


def filled(i: Any, x: Any) -> Any:
    """A buffer that is filled from a place on, which lanes have of their own, while there is room."""

    def step(s: Any, v: Any) -> Any:
        i, x = s
        return (i + 1, jnp.where(i < 60, x.at[i].set(v), x)), None

    return jax.lax.scan(step, (i, x), x[:9])[0]


def halved(x: Any, n: Any) -> Any:
    """Numbers times others that lanes halve until they are small, in six steps at most."""
    small = lambda s: (s[0] < 6) & (s[1] > 3)  # noqa: E731
    return x * jax.vmap(lambda n: jax.lax.while_loop(small, lambda s: (s[0] + 1, s[1] // 2), (0, n))[1])(n)


def counted(x: Any, n: Any) -> Any:
    """Numbers times what four steps make of others."""
    step = lambda s: (s[0] + 1, (s[1] * 3 + s[0]) % 17)  # noqa: E731
    return x * jax.lax.while_loop(lambda s: s[0] < 4, step, (0, n))[1]


def softened(a: Any, x: Any) -> Any:
    """A loop that makes the same of its weights in every step, as a number to differentiate."""
    return jax.lax.scan(lambda x, _: (jax.nn.softmax(a, -1) @ x, None), x, None, length=50)[0].sum()


def shifted(x: Any, w: Any) -> Any:
    """A filter whose last inputs stand in a register, as a number to differentiate."""

    def step(held: Any, x: Any) -> Any:
        held = jnp.roll(held, 1).at[0].set(x)
        return held, jnp.sin(w @ held)

    return jax.lax.scan(step, jnp.zeros_like(w), x)[1].sum()


def added(w: Any, start: Any, xs: Any) -> Any:
    """A loop that adds a product with the same weights in every step to what it was given."""
    return jax.lax.scan(lambda total, x: (total + w @ x, None), start, xs)[0]


def written(x0: Any, xs: Any) -> Any:
    """A buffer that is filled, row by row, between rows that stay."""

    def body(i: Any, carry: Any) -> Any:
        x, buffer = carry
        x = jnp.sin(x) + xs[i]
        return x, buffer.at[i + 2].set(x)

    return jax.lax.fori_loop(0, 9, body, (x0, jnp.stack([x0] * 13)))[1]


def thinned(x0: Any, xs: Any, ws: Any) -> Any:
    """A loop of whose outputs every eighth is read, and with it every eighth of what it is given for them alone."""
    return jax.lax.scan(lambda c, xw: (0.9 * jnp.cos(c) + xw[0], c * xw[1]), x0, (xs, ws))[1][6::8]


def mapped(x: Any) -> Any:
    """A carry of short rows."""
    return jax.lax.scan(lambda c, _: (3.7 * c * (1 - c), None), x, None, length=9)[0]


def rough(x: Any) -> Any:
    """A sum over differences of neighbours, along both axes."""
    return sum(jnp.sum(jnp.sqrt(1 + jnp.diff(x, axis=a) ** 2)) for a in range(2))


def diffused(x: Any) -> Any:
    """Diffusion on a ring, and a number to differentiate."""

    def step(x: Any, _: Any) -> Any:
        return x + 0.2 * (jnp.roll(x, 1) - 2 * x + jnp.roll(x, -1)), jnp.sum(x**3)

    return jnp.sum(jax.lax.scan(step, x, None, length=3)[1])


def products(w: Any, xs: Any) -> Any:
    """Batches of products in an order that is not the one they are wanted in."""
    return jax.vmap(jax.vmap(lambda x: w @ x, 1), 0)(jnp.swapaxes(xs, 1, 2))


def in_two_orders(w: Any, x: Any) -> Any:
    """A product of which two transposes are wanted."""
    y = (w @ x).T
    return y, jnp.transpose(y[None], (2, 0, 1))[:, 0]


def beside(w: Any, a: Any, b: Any) -> Any:
    """Rows with the same numbers before those of their own, times a matrix."""
    return jnp.tanh(jnp.concatenate([jnp.broadcast_to(a, (len(b), len(a))), b], 1) @ w).sum()


def sums_of_products(a: Any, b: Any, x: Any) -> Any:
    """A chain in the wrong order, a trace, a diagonal matrix and one-hot rows times a matrix."""
    rows = jax.nn.one_hot(jnp.argsort(x), len(x)) @ b
    beside = jax.vmap(lambda row: jnp.concatenate([row, x]) @ jnp.concatenate([a, b]))(b)
    return a @ b @ x, jnp.trace(a @ b), jnp.diag(x) @ a, rows, beside


def weak(x0: Any, xs: Any) -> Any:
    """Steps whose results are of weak type, which a loop never stacks."""
    ys = jax.lax.map(lambda x: jnp.sign(x0), xs)
    return ys * ys


def joined(x0: Any, xs: Any) -> Any:
    """A second loop, of whose dear outputs one is read and the sum."""
    ys = jax.lax.scan(lambda c, x: (0.9 * c + x, c), x0, xs)[1]
    zs = jax.lax.scan(lambda c, y: (0.5 * c + y, jnp.tanh(c + y)), jnp.zeros_like(x0), ys)[1]
    return jnp.tanh(jnp.sin(zs) * 2)[-1], zs.sum(0)


def integrated(q: Any, p: Any) -> Any:
    """Velocity Verlet, whose last force of a step is the first one of the next."""

    def body(state: Any, _: Any) -> Any:
        q, p = state
        p = p - 0.05 * jnp.sin(q)
        q = q + 0.1 * p
        return (q, p - 0.05 * jnp.sin(q)), None

    return jax.lax.scan(body, (q, p), None, length=8)[0]


def entries(x: Any, y: Any) -> Any:
    """Work on the entries of arrays with short rows, around a sum of all."""
    z = jnp.exp(x) * y
    return z - jnp.sum(z * z) / z.size, jnp.where(x > y, x, 0.5)


def smoothed(x: Any) -> Any:
    """A moving average that keeps the entry it begins with."""
    return jnp.concatenate([x[:1], jax.lax.scan(lambda c, v: (0.9 * c + jnp.sin(v),) * 2, x[0], x[1:])[1]])


def summed(w: Any, xs: Any, ys: Any) -> tuple[Any, Any]:
    """A sum of products of 32 terms over 14 steps, beside a state."""

    def step(carry: Any, pair: Any) -> Any:
        total, state = carry
        state = jnp.tanh(state @ w + pair[0])
        return (total + state.T @ pair[1], state), None

    return jax.lax.scan(step, (jnp.zeros((96, 512)), xs[0]), (xs, ys))[0]


def gates(x0: Any, xs: Any) -> Any:
    """A gated state: its gradient stores values that are functions of each other."""

    def body(c: Any, x: Any) -> Any:
        g, h = jax.nn.sigmoid(c + x), jnp.tanh(c - x)
        c = g * c + (1 - g) * h
        return c, c

    return jax.lax.scan(body, x0, xs)[1].sum()


def cut(x0: Any, xs: Any, w: Any) -> Any:
    """A cell of three gates over projected inputs."""

    def body(h: Any, x: Any) -> Any:
        a, b, c = jnp.split(x + h @ w, 3, -1)
        h = jax.nn.sigmoid(a) * h + jnp.tanh(b) * c
        return h, h

    return jax.lax.scan(body, x0, xs)[1]


def weighted_products(x: Any, y: Any, w: Any) -> Any:
    """Outer products with weights, summed up step by step."""
    step = lambda total, row: (total + row[2] * jnp.outer(row[0], row[1]), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros((x.shape[1], y.shape[1])), (x, y, w))[0]


def trajectories(x0: Any) -> Any:
    """Statistics of a trajectory with its initial state, of states three steps apart, and of its running sum."""
    ys = jax.lax.scan(lambda c, _: (c + 0.1 * jnp.sin(c),) * 2, x0, None, length=64)[1]
    whole = jnp.concatenate([x0[None], ys])
    speeds, twice = jnp.diff(whole, axis=0), 2 * whole
    return whole.mean(0), (speeds**2).sum(), (twice[3:] * twice[:-3]).sum(0), jnp.cumsum(ys, 0).max(0)


def pairs(x: Any, y: Any, v: Any) -> Any:
    """A formula over all pairs, large enough to be cut into blocks, of rows and across them, and a rest."""
    kernel = jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1))
    return kernel @ v, kernel.max(0)


def forces(p: Any) -> Any:
    """Between points in space, and the energy that they are the gradient of."""
    return jax.value_and_grad(lambda p: jnp.sum(jnp.sqrt(jnp.sum((p[:, None] - p[None]) ** 2, -1) + 0.1)))(p)


def of_a_factor(a: Any, y: Any) -> Any:
    """The gradient of a squared distance by its covariance."""

    def distance(covariance: Any) -> Any:
        white = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(covariance), y, lower=True)
        return white @ white

    return jax.grad(distance)(a @ a.T / len(a) + jnp.eye(len(a), dtype=a.dtype))


def by_inverse(a: Any, xs: Any, ys: Any) -> Any:
    """Products of two sets by an inverse that is not symmetric."""
    return jnp.einsum("ni,ij,nj->n", xs, jnp.linalg.inv(a), ys)


def prefixes(a: Any, x: Any) -> Any:
    """A linear recurrence by an associative scan."""
    return jax.lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, x))[1]


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attention in 16 bits, causal."""
    scores = jnp.where(jnp.tri(q.shape[0], dtype=bool), q @ k.T / 4, -1e9)
    return jax.nn.softmax(scores, axis=-1) @ v


def listed(x: Any) -> Any:
    """A sum over a list of an array's rows, and of windows that lie over each other."""
    windows = [jnp.cumsum(x[i : i + 3]) for i in range(18)]
    return sum(jnp.sum(jnp.tanh(x[i]) * x[i]) for i in range(20)) + jnp.sum(jnp.sin(jnp.stack(windows)))


def unrolled(x: Any) -> Any:
    """Loops that were written in Python: over rows, backwards, with a list, into an array."""
    rows = [jnp.cumsum(x[i]) for i in range(20)]
    y = jnp.zeros_like(x)
    for i in reversed(range(20)):
        y = y.at[i].set(x[i] * i)
    return sum(jnp.sum(row) for row in rows), rows[3], jnp.stack(rows, 1), y


def density(x: Any, t: Any) -> Any:
    """The logarithm of a normal density, and its derivatives."""
    return jax.value_and_grad(lambda t: jax.scipy.stats.norm.logpdf(x, t[0], t[1]).sum())(t)


def layers(ws: Any, x: Any) -> Any:
    """A network whose gradient keeps much."""
    for w in ws:
        x = x + jnp.tanh(jnp.sin(x @ w))
    return jnp.mean(x**2)


def convolved(x: Any, k: Any) -> Any:
    """The energy of a circular convolution."""
    return (jnp.fft.ifft(jnp.fft.fft(x) * jnp.fft.fft(k)).real ** 2).mean()


def stacked_words(x: Any) -> Any:
    """All states of a recurrence in bfloat16."""

    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(h * jnp.bfloat16(0.9)) + x
        return h, h

    return jax.lax.scan(step, x[0], x)[1]


def read_along(parts: Any, w: Any) -> Any:
    """A sum that goes on, of which products are taken on its way."""
    total, found = parts[0], []
    for part in parts[1:]:
        total = total + part
        found += [jnp.einsum("...i,...j->ij", total, part), total @ w]
    return found


def settled(w: Any, b: Any) -> Any:
    """An iteration whose steps read a matrix against its rows."""
    return jax.lax.scan(lambda z, _: (jnp.tanh(z @ w.T + b), None), b, None, length=40)[0]


def outer(start: Any, a: Any, b: Any) -> Any:
    """A loop that adds up products of columns, whose left operand is the wider one."""

    def step(total: Any, ab: Any) -> Any:
        return total + jax.lax.dot_general(jnp.tanh(ab[0]), ab[1], (((0,), (0,)), ((), ()))), ab[1].sum()

    return jax.lax.scan(step, start, (a, b))


def trained(weights: Any, x: Any) -> Any:
    """A step of gradient descent."""

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = jax.nn.relu(y @ w)
        return jnp.mean(y**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def normalised(weights: Any, x: Any) -> Any:
    """The loss of layers that normalise and activate."""
    for w in weights:
        x = x + jax.nn.gelu((x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) @ w)
    return jnp.mean(x**2)


def pooled(kernels: Any, x: Any) -> Any:
    """The loss of convolutions of few channels, each with a pooling."""
    for kernel in kernels:
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID"))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.mean(jnp.sin(x))


def filtered(x: Any, k: Any) -> Any:
    """Moving statistics of a series, and frames of it."""
    windows = x[jnp.arange(len(x) - 15)[:, None] + jnp.arange(16)]
    frames = x[20 * jnp.arange(90)[:, None] + jnp.arange(50)]
    return jnp.sin(windows @ k).sum() + windows.max(1).mean() + (frames**2).sum(1).max()


def curvature(x: Any, t: Any) -> Any:
    """A product with a Hessian."""
    return jax.hessian(lambda x: jnp.sum(jnp.sin(x[1:]) * x[:-1] ** 2))(x) @ t


def kicked(seed: Any, x: Any) -> Any:
    """Noise in short rows, and an odd number of draws."""
    own, other = jax.random.split(jax.random.key(seed))
    return jnp.tanh(x + jax.random.normal(own, x.shape)), jax.random.uniform(other, (1025,)) * x[0, 0]


def mirrored(a: Any, b: Any, x: Any) -> Any:
    """A product that is summed up with weights, and the product of these."""
    return jnp.sum(a * jnp.einsum("ij,kj->ik", x, b), 1), a @ b


def causal(q: Any, k: Any, v: Any) -> Any:
    """Attention to keys up to the query."""
    scores = q @ k.swapaxes(-1, -2)
    return jnp.sin(jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)) @ v)


def tail(x: Any) -> Any:
    """The mean of the lowest fifth, and the sum of a sort."""
    return jnp.sort(x)[: x.shape[0] // 5].mean() + jnp.sort(x).sum()


def shared(w: Any, z: Any) -> Any:
    """Rows under a `logsumexp` that subtracts their maximum, and weights that some of them use."""
    m = z.max(1, keepdims=True)
    y = jax.vmap(lambda p, x: jax.lax.cond(p, lambda x: jnp.tanh(x @ w) @ w, lambda x: x, x))(z[:, 0] > 0, z)
    return (m + jnp.log(jnp.exp(z - m).sum(1, keepdims=True))).sum() + (y**2).sum()


def volumes(m: Any) -> Any:
    """Determinants, whose gradient pads two products into each place: padded terms."""
    return jnp.sum(jnp.linalg.det(m) ** 2)


def lennard_jones(r: Any) -> Any:
    """Negative powers of one array: shared reciprocals."""
    return jnp.sum(4 * (r**-12 - r**-6))


@cache
def corpus() -> dict[str, tuple[ClosedJaxpr, list[Any]]]:
    """Programs in normal form, by name, and their inputs."""
    found: dict[str, Any] = {}
    for seed in DRAWN:
        drawn = draw_program(seed)
        found[f"drawn {seed}"] = drawn.function(), drawn.args()
    for k, pattern in enumerate(p for p in PATTERNS if p.size == PATTERNS[0].size):
        f = pattern.function(reverse=bool(k % 2))
        if pattern.name != "argmax" and k % 3 == 0:
            f = with_gradient(f)
        f = list(SURROUNDINGS.values())[k % 5](f)
        found[pattern.name] = f, pattern.args(bool(k % 2), SMALL_STATE)
    found["counted"] = counted, (normal(0, 50), jnp.arange(50) * 7)
    found["halved"] = halved, (normal(0, 50), jnp.arange(50) * 7)
    found["recurrent"] = recurrent, (normal(0, 64, 128) / 8, normal(1, 128, 128) / 12, normal(2, 100, 64))
    found["integrated"] = integrated, (normal(0, 4096), normal(1, 4096))
    found["entries"] = entries, (normal(0, 1024, 28), normal(1, 1024, 28))
    found["an order that nobody needs"] = jax.value_and_grad(tail), (normal(0, 9000),)
    found["gates"] = jax.value_and_grad(gates), (normal(0, 4096), normal(1, 71, 4096))
    found["sums of products"] = sums_of_products, (normal(0, 200, 200), normal(1, 200, 200), normal(2, 200))
    found["beside"] = jax.grad(beside, (1, 2)), (normal(0, 192, 64) / 8, normal(1, 64), normal(2, 512, 128))
    found["in two orders"] = in_two_orders, (normal(0, 5, 7), normal(1, 7, 4))
    found["cut"] = cut, (normal(0, 2, 16), normal(1, 10, 2, 48), normal(2, 16, 48) / 4)
    found["weak"] = weak, (3, normal(0, 5))
    found["weighted products"] = weighted_products, (normal(0, 400, 48), normal(1, 400, 40), normal(2, 400))
    found["joined"] = joined, (normal(0, 4, 3), normal(1, 5, 4, 3))
    found["trajectories"] = trajectories, (normal(0, 4096),)
    found["pairs"] = pairs, (normal(0, 1031, 3), normal(1, 4099, 3), normal(2, 4099))
    found["forces"] = forces, (normal(0, 40, 3),)
    found["distances"] = jax.value_and_grad(lennard_jones), (1 + jnp.abs(normal(0, 1037)),)
    found["volumes"] = jax.grad(volumes), (normal(0, 20, 3, 3),)
    found["factor"] = of_a_factor, (normal(0, 36, 36), normal(1, 36))
    found["inverse"] = by_inverse, (normal(0, 8, 8) / 8 + jnp.eye(8), normal(1, 5, 8), normal(2, 5, 8))
    found["shared"] = jax.grad(shared, (0, 1)), (normal(0, 24, 24) / 5, normal(1, 48, 24))
    found["spectra"] = jax.value_and_grad(convolved, (0, 1)), (normal(0, 16, 4096), normal(1, 4096))
    found["trained"] = trained, ([normal(k, 64, 64) / 8 for k in range(3)], normal(3, 32, 64))
    found["normalised"] = jax.grad(normalised), ([normal(k, 256, 256) / 16 for k in range(3)], normal(3, 1024, 256))
    kernels = [normal(0, 6, 3, 5, 5) / 8, normal(1, 16, 6, 5, 5) / 12]
    found["pooled"] = jax.grad(pooled), (kernels, normal(2, 64, 3, 24, 24))
    found["summed"] = summed, (normal(0, 96, 96) / 12, normal(1, 14, 32, 96), normal(2, 14, 32, 512))
    found["prefixes"] = prefixes, (normal(0, 40, 6) / 8, normal(1, 40, 6))
    found["attention"] = attention, tuple(normal(n, 64, 16).astype(jnp.bfloat16) for n in range(3))
    found["mirrored"] = mirrored, (normal(0, 128, 96), normal(1, 96, 80), normal(2, 128, 80))
    found["kicked"] = kicked, (jnp.asarray(3), normal(0, 31, 6))
    found["curvature"] = curvature, (normal(0, 128), normal(1, 128))
    found["causal"] = causal, tuple(normal(n, 4, 512, 8) for n in range(3))
    found["unrolled"] = unrolled, (normal(0, 20, 4),)
    found["listed"] = jax.value_and_grad(listed), (normal(0, 20, 4),)
    lanes, weights = jnp.array([True, False, False]), normal(1, 96, 96) / 10
    found["gated"] = jax.grad(gated, (0, 1)), (normal(0, 96, 96) / 10, normal(1, 20, 96))
    found["branches"] = jax.vmap(branch, (None, 0, 0)), (weights, lanes, normal(2, 3, 96, 96))
    found["lanes"] = jax.vmap(filled), (jnp.array([0, 20, 55]), normal(0, 3, 64))
    found["linear"] = jax.grad(softened), (normal(0, 48, 48), normal(1, 48))
    found["shifted"] = jax.grad(shifted, (0, 1)), (normal(0, 2000), normal(1, 9))
    found["added"] = added, (normal(0, 48, 48), normal(1, 48), normal(2, 50, 48))
    found["written"] = written, (normal(0, 64), normal(1, 9, 64))
    found["thinned"] = thinned, (normal(0, 8, 1024), normal(1, 64, 8, 1024), normal(2, 64, 8, 1024))
    found["density"] = density, (normal(0, 100_000), abs(normal(1, 2)))
    found["layers"] = jax.grad(layers, (0, 1)), ([normal(k, 64, 64) / 8 for k in range(8)], normal(8, 8192, 64))
    found["excerpt"] = jax.grad(lambda a, b: jnp.tanh((a @ b)[3]).sum()), (normal(0, 96, 96), normal(1, 96, 96))
    found["mapped"] = mapped, (1 / (1 + normal(0, 1024, 28) ** 2),)
    found["diffused"] = jax.value_and_grad(diffused), (normal(0, 8192),)
    found["rough"] = jax.grad(rough), (normal(0, 60, 100),)
    found["products"] = products, (normal(0, 32, 48), normal(1, 16, 24, 48))
    found["short"] = lambda x, y: (jnp.sum(x * y), jnp.tanh(x) - y), (normal(0, 900), normal(1, 900))
    found["weighted"] = (
        lambda w, x: jnp.sum(w[:, None] * jnp.exp(-x * x), 0),
        (normal(0, 20, 60), normal(1, 20, 16, 60)),
    )
    found["filtered"] = jax.value_and_grad(filtered, (0, 1)), (normal(0, 2000), normal(1, 16))
    found["smoothed"] = smoothed, (normal(0, 200, 64),)
    found["ensemble"] = lambda x: (jnp.std(x, 0), jnp.max(x, 0)), (normal(0, 5, 3, 16_400),)
    found["words"] = stacked_words, (normal(0, 40, 256).astype(jnp.bfloat16),)
    found["read along"] = read_along, (list(normal(0, 8, 8, 64, 64)), normal(1, 64, 64) / 8)
    found["outer"] = outer, (normal(0, 256, 28), normal(1, 5, 16, 256), normal(2, 5, 16, 28))
    found["settled"] = settled, (normal(0, 64, 64) / 8, normal(1, 8, 64))
    found["field"] = lambda w, x: (jnp.tanh(x) * w[:, None]).sum(0), (normal(0, 512), normal(1, 512, 512))
    return {
        name: (normalize(jax.make_jaxpr(f)(*args))[0], [jnp.asarray(x) for x in jax.tree.leaves(args)])
        for name, (f, args) in found.items()
    }


NAMES = [*(f"drawn {seed}" for seed in DRAWN), *(p.name for p in PATTERNS if p.size == PATTERNS[0].size)]


class Limited(MemoryLimit):
    """The pass under a limit that `layers` breaks, and no other program of the corpus."""

    def __call__(self, program: ClosedJaxpr, context: Context) -> tuple[ClosedJaxpr, list[Decision]]:
        """As the pass."""
        return super().__call__(program, replace(context, memory_limit=34 << 20))


class Outermost(ShortCalls):
    """The pass on programs that no other program holds."""

    def __call__(self, program: ClosedJaxpr, context: Context) -> tuple[ClosedJaxpr, list[Decision]]:
        """As the pass."""
        return super().__call__(program, replace(context, outermost=True))


class OutermostWrites(LateWrites):
    """The same."""

    def __call__(self, program: ClosedJaxpr, context: Context) -> tuple[ClosedJaxpr, list[Decision]]:
        """As the pass."""
        return super().__call__(program, replace(context, outermost=True))


class UnrolledOnGPU(LoopUnroll):
    """The pass where it acts."""

    def __call__(self, program: ClosedJaxpr, context: Context) -> tuple[ClosedJaxpr, list[Decision]]:
        """As the pass."""
        return super().__call__(program, replace(context, platform="gpu"))


class AttentionOnGPU(FusedAttention):
    """The pass where it acts, at any size; JAX's own attention stands for cuDNN's."""

    def __call__(self, program: ClosedJaxpr, context: Context) -> tuple[ClosedJaxpr, list[Decision]]:
        """As the pass."""
        with (
            mock.patch.object(_jax, "why_no_cudnn_attention", return_value=None),
            mock.patch.object(attention_layout, "IMPLEMENTATION", "xla"),
            mock.patch.object(attention_call, "LEAST_BYTES", 0),
        ):
            return super().__call__(program, replace(context, platform="gpu"))


ON_GPU = replace(FAST, platform="gpu")
# `gates` stores 6.7 MB. The machine's own border is at 32, below which the pass does no more than it ends with.
INSTEAD = {
    MemoryLimit.name: Limited(),
    FusedAttention.name: AttentionOnGPU(),
    LoopSegments.name: LoopSegments(least_bytes=5 << 20),
    LateWrites.name: OutermostWrites(),
    LoopUnroll.name: UnrolledOnGPU(),
    ShortCalls.name: Outermost(),
}
PASSES = tuple(INSTEAD.get(p.name, p) for p in DEFAULT_PASSES)
EACH = pytest.mark.parametrize("one", PASSES, ids=lambda p: p.name)


def changed(one: Pass) -> list[tuple[str, ClosedJaxpr, ClosedJaxpr]]:
    """The programs of the corpus that a pass changes, before and after."""
    pairs = [(name, program, one(program, FAST)[0]) for name, (program, _) in corpus().items()]
    return [(name, a, b) for name, a, b in pairs if b is not a]


@EACH
def test_types_and_form(one: Pass) -> None:
    """Law 1: the same types in and out, and well typed; the corpus holds work of its own for every pass."""
    found = changed(one)
    assert any(d.fired and d.rule == one.name for _, before, _ in found for d in one(before, FAST)[1])
    for name, before, after in found:
        try:
            check_program(after, before)
        except Exception as error:
            raise AssertionError(name) from error


@EACH
def test_every_change_is_a_decision(one: Pass) -> None:
    """A program is the same object unless a decision fired, and another one if so."""
    for name, (program, _) in corpus().items():
        after, decisions = one(program, FAST)
        assert (after is not program) == any(d.fired for d in decisions), name
        assert all(d.reason for d in decisions), name


@EACH
def test_meaning(one: Pass) -> None:
    """Law 2: results agree, judged as the loosest decision that fired promised."""
    for name, before, after in changed(one):
        inputs = corpus()[name][1]
        promises = {Exactness(d.exactness) for d in one(before, FAST)[1] if d.fired}
        loose = promises & {Exactness.REASSOCIATES, Exactness.FINITE}
        got, want = ([*jax.jit(lambda *xs, p=p: evaluate(p, xs))(*inputs)] for p in (after, before))
        if Exactness.FINITE in loose and not all(
            np.all(np.isfinite(np.asarray(w, float))) for w in want if w.dtype.kind == "f"
        ):
            continue
        # A pass that promises bits promises them for the program it makes; XLA compiles that anew and may round
        # otherwise, so that results of a compiled program are held to `no_worse` or to a few units of the largest.
        differences = compare(got, want, inputs=inputs)
        if differences:
            reference = float64_reference(before.jaxpr, before.consts, inputs)
            differences = compare(got, want, reference, inputs=inputs) and compare(
                got, want, reference, exactness=Exactness.NO_WORSE, inputs=inputs
            )
        assert differences == [], name


@EACH
def test_gradients_and_batches(one: Pass) -> None:
    """Law 2: gradients and vmapped results of the rewritten program are those of the original.

    What a pass writes that keeps no derivatives is never differentiated (tests/transform/test_better.py).
    """
    # A mean of squares of what was drawn may overflow; tests/test_differential.py knows how to judge it.
    found = [each for each in changed(one) if not each[0].startswith("drawn")]
    assert found
    for name, before, after in found[:: -(-len(found) // MOST)]:
        inputs = corpus()[name][1]

        def scalar(program: ClosedJaxpr, xs: Any) -> Any:
            outs = [y for y in evaluate(program, xs) if jnp.issubdtype(y.dtype, jnp.floating)]
            return sum((jnp.mean(y.astype(jnp.float32) ** 2) for y in outs), jnp.float32(0))

        batches = [jnp.stack([x, x]) for x in inputs]
        pairs = [[jax.jit(jax.vmap(lambda xs, p=p: evaluate(p, xs)))(batches) for p in (after, before)]]
        if keeps_derivatives(one):
            gradient = [jax.grad(lambda xs, p=p: scalar(p, xs), allow_int=True) for p in (after, before)]
            pairs.append([jax.jit(of)(inputs) for of in gradient])
        for got, want in pairs:
            assert compare(jax.tree.leaves(got), jax.tree.leaves(want)) == [], name


@EACH
def test_rest(one: Pass) -> None:
    """Law 3: a pass finds nothing to do in its own result, put into normal form."""
    restless: list[str] = []
    for name, _, after in changed(one):
        _, decisions = one(normalize(after)[0], FAST)
        restless += [name] if any(d.fired for d in decisions) else []
    assert restless == []


@EACH
def test_strict_allows_nothing_loose(one: Pass) -> None:
    """Under strict no decision fires that promises less than `no_worse`."""
    for name, (program, _) in corpus().items():
        fired = {d.exactness for d in one(program, STRICT)[1] if d.fired}
        assert fired <= {Exactness.BITWISE, Exactness.NO_WORSE}, name


@cache
def with_prints(name: str, in_loops: bool) -> ClosedJaxpr:
    """A program of the corpus with an operation that has an effect, and no results, behind every third one."""
    program, inputs = corpus()[name]

    def run(jaxpr: ClosedJaxpr, *args: Any) -> list[Any]:
        def scan(eqn: Any, *values: Any) -> list[Any]:
            (first, carries), p = scan_counts(eqn.params), eqn.params
            consts, carry, xs = values[:first], values[first : first + carries], values[first + carries :]

            def body(carry: Any, x: Any) -> Any:
                outs = run(p["jaxpr"], *consts, *carry, *x)
                return outs[: len(carry)], outs[len(carry) :]

            carry, ys = jax.lax.scan(body, [*carry], [*xs], p["length"], p["reverse"])
            return [*carry, *ys]

        def then_print(eqn: Any, *values: Any) -> list[Any]:
            if in_loops and eqn.primitive.name == "scan":
                outs = scan(eqn, *values)
            else:
                outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
                outs = outs if eqn.primitive.multiple_results else [outs]
            if next(count) % 3 == 0:
                jax.debug.callback(lambda *_: None, *outs[:1])
            return outs

        names = {eqn.primitive.name for eqn in jaxpr.eqns}
        return evaluate_around(jaxpr, args, dict.fromkeys(names, then_print))

    count = itertools.count()
    return normalize(jax.make_jaxpr(partial(run, program))(*inputs))[0]


@EACH
@pytest.mark.parametrize("in_loops", [False, True])
def test_a_print_may_stand_anywhere(one: Pass, in_loops: bool) -> None:
    """Law 1 where operations without results stand between the others: nothing raises, every one of them is kept."""
    for name in corpus():
        before = with_prints(name, in_loops)
        after, _ = one(before, FAST)
        check_program(after, before)
        assert str(after).count("debug_callback") == str(before).count("debug_callback"), name


@pytest.mark.parametrize("name", NAMES)
def test_meaning_of_all_as_on_a_gpu(name: str) -> None:
    """What the passes make of a program for a GPU, at its prices, computes the same; here on the CPU."""
    program, inputs = corpus()[name]
    after = program
    for one in DEFAULT_PASSES:
        if has_its_turn(one, ON_GPU):
            after, _ = one(after, ON_GPU)
    check_program(after, program)
    got, want = ([*jax.jit(lambda *xs, p=p: evaluate(p, xs))(*inputs)] for p in (after, program))
    reference = float64_reference(program.jaxpr, program.consts, inputs)
    if all(np.all(np.isfinite(np.asarray(w, float))) for w in want if w.dtype.kind == "f"):
        assert compare(got, want, inputs=inputs) == [] or compare(got, want, reference, inputs=inputs) == []


def printed(names: list[str]) -> str:
    """The programs after all passes, as text."""
    texts = []
    for name in names:
        program, _ = corpus()[name]
        for one in DEFAULT_PASSES:
            if has_its_turn(one, FAST):
                program, _ = one(program, FAST)
        texts.append(str(program))
    return "\n".join(texts)


def test_same_program_same_text() -> None:
    """Two runs, and runs with other hash seeds, give the same text."""
    script = "import sys; from laws import test_passes as t; sys.stdout.write(t.printed(t.NAMES[::6]))"
    paths = os.pathsep.join(str(HERE.parents[1] / p) for p in ("src", "tests"))
    outs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert len(outs[0]) > 1000
    assert outs[0] == outs[1]
