"""Claim: a product with an inverse, in any spelling, costs what the hand-written solve costs.

Formulas as they stand in books: a solution, a Mahalanobis distance, a Gaussian log-density.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=1.3)
N = 400
inv, solve = jnp.linalg.inv, jnp.linalg.solve


def matrix():
    a = normal(0, N, N)
    return a @ a.T / N + jnp.eye(N)


def case(name, natural, hand, b):
    return Case(name, natural, {"solve": hand}, lambda: (matrix(), b()), bounds=BOUNDS)


def density(a, b):
    return b @ inv(a) @ b + jnp.log(jnp.linalg.det(a / 4))


def density_by_hand(a, b):
    return b @ solve(a, b) + jnp.linalg.slogdet(a / 4)[1]


def regression(x, y):
    """Least squares by the normal equations."""
    return inv(x.T @ x) @ x.T @ y


REGRESSION = Case(
    "normal equations",
    regression,
    {"solve": lambda x, y: solve(x.T @ x, x.T @ y)},
    lambda: (normal(0, 1000, 100), normal(1, 1000)),
    (0, 1),
    bounds=Bounds(over_hand=1.10),
    grad_bounds=BOUNDS,
)


CASES = (
    REGRESSION,
    case("a Gaussian log-density", density, density_by_hand, lambda: normal(1, N)),
    case("A^-1 b", lambda a, b: inv(a) @ b, solve, lambda: normal(1, N)),
    case("b A^-1, 50 rows", lambda a, b: b @ inv(a), lambda a, b: solve(a.T, b.T).T, lambda: normal(1, 50, N)),
    Case(
        "a product with four times as many columns stays",
        lambda a, b: b @ inv(a),
        {"as it stands": lambda a, b: b @ inv(a)},
        lambda: (normal(0, 100, 100) / 10 + 3 * jnp.eye(100), normal(1, 400, 100)),
        (0, 1),
        bounds=Bounds(over_hand=1.10),
        grad_bounds=Bounds(over_hand=1.10),
    ),
    case("b A^-1 b", lambda a, b: b @ inv(a) @ b, lambda a, b: b @ solve(a, b), lambda: normal(1, N)),
    case(
        "one inverse under vmap",
        jax.vmap(lambda a, b: inv(a) @ b, (None, 0)),
        lambda a, b: solve(a, b.T).T,
        lambda: normal(1, 50, N),
    ),
    case(
        "distances by einsum",
        lambda a, x: jnp.einsum("ni,ij,nj->n", x, inv(a), x),
        lambda a, x: jnp.sum(x * solve(a, x.T).T, -1),
        lambda: normal(1, 50, N),
    ),
)
