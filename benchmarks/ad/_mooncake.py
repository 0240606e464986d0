"""Rows 1 to 11: the programs that Mooncake.jl measures itself with (`bench/run_benchmarks.jl`), in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm, truncnorm

from ._row import Row, normal

double = functools.partial(normal, dtype=np.float64)
LOW, HIGH = 0.1, 10.0  # the bounds of `truncated(Normal(1, 2), 0.1, 10)`


def sum_loop(x):
    return jax.lax.scan(lambda y, entry: (y + entry, None), 0.0, x)[0]


def sum_sin_loop(x):
    return jax.lax.scan(lambda y, entry: (y + jnp.sin(entry), None), 0.0, x)[0]


def sin_cos_exp(x):
    return jnp.sin(jnp.cos(jnp.exp(x)))


def naive_map(x):
    flat = x.ravel()
    filled = jax.lax.fori_loop(0, flat.size, lambda n, y: y.at[n].set(sin_cos_exp(flat[n])), jnp.zeros_like(flat))
    return jnp.sum(filled)


def simple_mlp(w2, w1, y, x):
    hidden = w1 @ x
    return jnp.sum((y - w2 @ (hidden * (hidden >= 0))) ** 2)


def gp_lml(x, y, s):
    """Log density of `y` under a Gaussian process with a squared exponential kernel and noise `s`."""
    squares = (x[:, None] - x[None]) ** 2
    factor = jnp.linalg.cholesky(jnp.exp(-0.5 * squares) + s * jnp.eye(x.size))
    white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(factor))) - 0.5 * x.size * jnp.log(2 * jnp.pi)


def turing_broadcast(theta, data):
    """Log joint density of a log-normal model, its two truncated parameters mapped to the real line.

    The form that its target was taken with is not known: it stored six arrays for the way back, this one three, and so
    plain JAX takes less time for it than it took there.
    """
    inside = jax.nn.sigmoid(theta)
    mean, deviation = params = LOW + (HIGH - LOW) * inside
    priors = truncnorm.logpdf(params, (LOW - 1) / 2, (HIGH - 1) / 2, loc=1, scale=2)
    jacobian = jnp.log((HIGH - LOW) * inside * (1 - inside))
    logs = jnp.log(data)
    return jnp.sum(priors + jacobian) + jnp.sum(norm.logpdf(logs, mean, deviation) - logs)


def large_single_block(x):
    value = x[0]
    for _ in range(400):
        value = value * x[1]
    return value


def of_turing():
    (data,) = double((100_000,))
    return np.array([0.1, -0.2]), np.exp(data)


def of_gp():
    (y,) = double((128,))
    return np.arange(128) * 0.2, y, np.array(1.0)


def thousand():
    return double((1000,))


def ten_by_ten():
    return double((10, 10))


ROWS = (
    Row(1, "sum_1000", jnp.sum, thousand, (9.5, 25)),
    Row(2, "_sum_1000", sum_loop, thousand, (10, 15.4), published=1.3),
    Row(3, "sum_sin_1000", lambda x: jnp.sum(jnp.sin(x)), thousand, (12, 43), published=1.45),
    Row(4, "_sum_sin_1000", sum_sin_loop, thousand, (12.5, 25), published=1.5),
    Row(
        5,
        "kron_sum",
        lambda x, y: jnp.sum(jnp.kron(x, y)),
        lambda: double((20, 20), (40, 40)),
        (15, 176),
        wrt=(0, 1),
        published=3.3,
    ),
    Row(
        6,
        "kron_view_sum",
        lambda x, y: jnp.sum(jnp.kron(x[:20, :20], jnp.triu(y))),
        lambda: double((40, 30), (40, 40)),
        (15, 167),
        wrt=(0, 1),
        published=3.7,
    ),
    Row(7, "naive_map_sin_cos_exp", naive_map, ten_by_ten, (11, 24), published=1.2),
    Row(
        7,
        "map_sin_cos_exp",
        lambda x: jnp.sum(jax.vmap(sin_cos_exp)(x.ravel())),
        ten_by_ten,
        (11, 13.5),
        published=1.2,
    ),
    Row(7, "broadcast_sin_cos_exp", lambda x: jnp.sum(sin_cos_exp(x)), ten_by_ten, (11, 13.2), published=1.2),
    Row(
        8,
        "simple_mlp",
        simple_mlp,
        lambda: double((128, 256), (256, 128), (128, 70), (128, 70)),
        (850, 1023),
        wrt=(0, 1, 2, 3),
        published=3.4,
    ),
    Row(9, "gp_lml", gp_lml, of_gp, (470, 766), wrt=(0, 1, 2)),
    Row(10, "turing_broadcast", turing_broadcast, of_turing, (200, 1028)),
    Row(11, "large_single_block", large_single_block, lambda: (np.array([0.9, 0.99]),), (10, 25)),
)
