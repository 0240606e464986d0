"""Claim: identities, diagonals, triangles and one-hot rows that a function closes over cost what inner ones cost.

`np.eye(n)` that was made before, by NumPy or by JAX, is an array of numbers for XLA, which multiplies by all its zeros.
The expert's form does not have it.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=1.3, memory_over_hand=None)
GRADIENT = Bounds(over_hand=1.10, memory_over_hand=None)
N = 600
EYE = np.eye(N, dtype=np.float32)
CENTRED = (np.eye(N) - 1 / N).astype(np.float32)
TRIANGLE = np.tri(N, dtype=np.float32)
DIAGONAL = np.diag(np.arange(1, N + 1)).astype(np.float32)
LABELS = np.random.default_rng(0).integers(0, 200, 5000)
ROWS = np.eye(200, dtype=np.float32)[LABELS]


def matrix():
    return (normal(0, N, N),)


def with_vector():
    return normal(0, N, N), normal(1, N)


def added(a, x):
    return (a + 0.1 * EYE) @ x


def scaled(a):
    return np.arange(1, N + 1, dtype=np.float32)[:, None] * a


def two():
    return normal(0, N, N), normal(1, N, N)


def case(name, natural, hand, args, grad):
    return Case(name, natural, {"by hand": hand}, args, grad, bounds=BOUNDS, grad_bounds=GRADIENT)


CASES = [
    case(
        "a scaled identity is added",
        added,
        lambda a, x: a @ x + 0.1 * x,
        with_vector,
        (0, 1),
    ),
    case("a diagonal by a mask", lambda a, b: jnp.sum((a @ b) * EYE), lambda a, b: jnp.sum(a * b.T), two, (0, 1)),
    case(
        "means are subtracted from rows and columns",
        lambda k: CENTRED @ k @ CENTRED,
        lambda k: k - k.mean(0) - k.mean(1)[:, None] + k.mean(),
        matrix,
        (0,),
    ),
    case("running sums", lambda x: TRIANGLE @ x, lambda x: jnp.cumsum(x, 0), lambda: (normal(0, N, 64),), (0,)),
    case("a diagonal", lambda a: DIAGONAL @ a, scaled, matrix, (0,)),
    case("one-hot rows", lambda w: ROWS @ w, lambda w: w[LABELS], lambda: (normal(0, 200, 64),), (0,)),
    case(
        "a solve for an identity",
        lambda a, x: jnp.linalg.solve(a, EYE[:200, :200]) @ x,
        jnp.linalg.solve,
        lambda: (normal(0, 200, 200) + 20 * jnp.eye(200), normal(1, 200)),
        (0, 1),
    ),
]
