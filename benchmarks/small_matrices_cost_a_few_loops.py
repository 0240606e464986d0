"""Claim: batches of small matrices cost a few elementwise loops, and no call of a library for each of them.

Products, solves, inverses and factors of 20,000 matrices, a chain of transforms of a robot arm, rotations of points.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

COUNT = 20_000
inv, solve = jnp.linalg.inv, jnp.linalg.solve


def fast(speedup):
    return Bounds(over_hand=1.10, speedup=speedup)


def definite(n):
    a = normal(n, COUNT, n, n)
    return a @ jnp.matrix_transpose(a) + 0.5 * jnp.eye(n)


def product(a, b):
    return sum(a[:, :, k, None] * b[:, k, None, :] for k in range(a.shape[2]))


def errors_by_hand(a, x):
    return jnp.stack([sum(a[:, i, k] * x[:, k] for k in range(4)) for i in range(4)], -1)


def transform(t):
    c, s = jnp.cos(t), jnp.sin(t)
    return jnp.array([[c, -s, 0, 1], [s, c, 0, 0], [0, 0, 1, 0.5], [0, 0, 0, 1]])


def arm(angles):
    whole = transform(angles[0])
    for k in range(1, 6):
        whole = whole @ transform(angles[k])
    return whole


def arms_by_hand(angles):
    each = [jax.vmap(transform)(angles[:, k]) for k in range(6)]
    whole = each[0]
    for one in each[1:]:
        whole = product(whole, one)
    return whole


def inverse_2(a):
    det = a[:, 0, 0] * a[:, 1, 1] - a[:, 0, 1] * a[:, 1, 0]
    rows = jnp.stack([a[:, 1, 1], -a[:, 0, 1]], -1), jnp.stack([-a[:, 1, 0], a[:, 0, 0]], -1)
    return jnp.stack(rows, -2) / det[:, None, None]


def cholesky_3(a):
    l00 = jnp.sqrt(a[:, 0, 0])
    l10, l20 = a[:, 1, 0] / l00, a[:, 2, 0] / l00
    l11 = jnp.sqrt(a[:, 1, 1] - l10 * l10)
    l21 = (a[:, 2, 1] - l20 * l10) / l11
    l22 = jnp.sqrt(a[:, 2, 2] - l20 * l20 - l21 * l21)
    zero = jnp.zeros_like(l00)
    rows = [[l00, zero, zero], [l10, l11, zero], [l20, l21, l22]]
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


definite_solves = jax.vmap(lambda a, b: jax.scipy.linalg.solve(a, b, assume_a="pos"))


def determinants(a):
    """By elimination; a row that goes down changes its sign."""
    n, whole = a.shape[-1], 1.0
    rows = [[a[:, i, j] for j in range(n)] for i in range(n)]
    while rows:
        pivot, *others = rows
        for k, row in enumerate(others):
            larger = abs(row[0]) > abs(pivot[0])
            others[k] = [jnp.where(larger, -x, y) for x, y in zip(pivot, row, strict=True)]
            pivot = [jnp.where(larger, y, x) for x, y in zip(pivot, row, strict=True)]
        factors = [row[0] * (1 / pivot[0]) for row in others]
        rows = [
            [x - f * y for x, y in zip(row[1:], pivot[1:], strict=True)] for f, row in zip(factors, others, strict=True)
        ]
        whole = whole * pivot[0]
    return whole


def log_determinants(a):
    """Of definite matrices, by the diagonals of their Cholesky factors."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(a), axis1=1, axis2=2)), -1)


def log_determinants_by_hand(a):
    n, total = a.shape[-1], 0.0
    rows = [[a[:, i, j] for j in range(n)] for i in range(n)]
    for k in range(n):
        total = total + jnp.log(rows[k][k])
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            for j in range(k + 1, i + 1):
                rows[i][j] = rows[i][j] - factor * rows[j][k]
    return total


CASES = (
    Case(
        "4 x 4 products",
        jnp.matmul,
        {"sum over k": product},
        lambda: (normal(0, COUNT, 4, 4), normal(1, COUNT, 4, 4)),
        grad=(0, 1),
        bounds=fast(10),
        grad_bounds=fast(5),
    ),
    Case(
        "rotations of points",
        lambda x, r: x @ r,
        {"sum over k": lambda x, r: sum(x[:, k, None] * r[k] for k in range(3))},
        lambda: (normal(0, 200_000, 3), normal(1, 3, 3)),
        bounds=fast(3),
    ),
    Case(
        "the squares of errors, summed",
        lambda a, x, y: jnp.mean((jnp.einsum("nij,nj->ni", a, x) - y) ** 2),
        {"sum over k": lambda a, x, y: jnp.mean((errors_by_hand(a, x) - y) ** 2)},
        lambda: (normal(0, COUNT, 4, 4), normal(1, COUNT, 4), normal(2, COUNT, 4)),
        grad=(0, 1),
        bounds=fast(1.3),
        grad_bounds=fast(1.0),
    ),
    Case(
        "solves with definite matrices",
        definite_solves,
        {"plain": definite_solves},  # there is no form by hand
        lambda: (definite(3), normal(1, COUNT, 3)),
        grad=(0, 1),
        bounds=Bounds(over_hand=None, speedup=4, memory_over_hand=None),
        grad_bounds=Bounds(over_hand=None, speedup=4, memory_over_hand=None),
    ),
    Case("a robot arm", jax.vmap(arm), {"sum over k": arms_by_hand}, lambda: (normal(0, 5000, 6),), bounds=fast(5)),
    Case(
        "2 x 2 inverses",
        inv,
        {"adjugate": inverse_2},
        lambda: (definite(2),),
        bounds=Bounds(over_hand=None, speedup=5, memory_over_hand=None),
        notes="with pivots, which the adjugate has not",
    ),
    Case(
        "6 x 6 determinants",
        jnp.linalg.det,
        {"elimination": determinants},
        lambda: (normal(0, 5000, 6, 6),),
        bounds=fast(5),
    ),
    Case(
        "4 x 4 log-determinants by Cholesky",
        log_determinants,
        {"elimination": log_determinants_by_hand},
        lambda: (definite(4),),
        bounds=fast(3),
    ),
    Case(
        "3 x 3 Cholesky factors",
        jnp.linalg.cholesky,
        {"formula": cholesky_3},
        lambda: (definite(3),),
        bounds=Bounds(over_hand=None, speedup=2, memory_over_hand=None),
    ),
)
