"""Claim: the gradient of a likelihood by its covariance costs what the formula in the textbook costs.

JAX differentiates the Cholesky factor, which takes a product of two square matrices and two triangular solves for one.
The expert's form is (a a^T - K^-1) / 2, a = K^-1 y (Rasmussen and Williams 2006, equation 5.9): the inverse from the
factor, and an outer product.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.stats import multivariate_normal

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=None, speedup=None, memory_over_hand=None)
GRAD_BOUNDS = Bounds(over_hand=1.10, speedup=1.2, memory_over_hand=1.10)


def density(covariance, y):
    factor = jnp.linalg.cholesky(covariance)
    white = solve_triangular(factor, y, lower=True)
    return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(factor)))


@jax.custom_vjp
def density_by_hand(covariance, y):
    return density(covariance, y)


def _forward(covariance, y):
    factor = jnp.linalg.cholesky(covariance)
    a = cho_solve((factor, True), y)
    return -0.5 * y @ a - jnp.sum(jnp.log(jnp.diag(factor))), (factor, a)


def _backward(kept, g):
    factor, a = kept
    inverse = cho_solve((factor, True), jnp.eye(len(a), dtype=a.dtype))
    return 0.5 * g * (a[:, None] * a[None] - inverse), -g * a


density_by_hand.defvjp(_forward, _backward)


def kernel(x, scale, noise):
    return jnp.exp(-0.5 * ((x[:, None] - x[None]) / scale) ** 2) + noise * jnp.eye(len(x))


def process(density):
    """A Gaussian process: the likelihood of `y` at points `x`."""
    return lambda x, y, scale, noise: density(kernel(x, scale, noise), y)


def library(covariance, y):
    return multivariate_normal.logpdf(y, jnp.zeros_like(y), covariance)


def library_by_hand(covariance, y):
    return density_by_hand(covariance, y) - 0.5 * len(y) * jnp.log(2 * jnp.pi)


def points(n):
    return jnp.arange(n) * 0.2, normal(0, n), jnp.float32(1.3), jnp.float32(0.5)


def covariance(n):
    a = normal(0, n, n)
    return a @ a.T / n + jnp.eye(n), normal(1, n)


def case(name, natural, hand, args, grad):
    return Case(name, natural, {"by the formula": hand}, args, grad, bounds=BOUNDS, grad_bounds=GRAD_BOUNDS)


CASES = (
    *(
        case(
            f"a Gaussian process of {n} points",
            process(density),
            process(density_by_hand),
            lambda n=n: points(n),
            which,
        )
        for n, which in ((128, (0, 1, 2, 3)), (300, (2, 3)), (600, (2, 3)))
    ),
    case("a covariance of 300", density, density_by_hand, lambda: covariance(300), (0, 1)),
    case("a covariance of 300, JAX's density", library, library_by_hand, lambda: covariance(300), (0, 1)),
)
