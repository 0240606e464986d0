"""Claim: what several sums repeat along their axes costs nothing, as what one sum repeats.

The expert's form gives each sum a value of its own, behind a barrier: XLA makes equal ones one, and writes it out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10, speedup=1.15)
NEVER_SLOWER = Bounds(over_hand=None, memory_over_hand=None)


def own(x):
    """A value equal to x, of which XLA does not know that it is."""
    return lax.optimization_barrier(x)


def arrays(rows=1024, columns=1024):
    return lambda: (normal(0, rows, columns), normal(1, rows, columns), jnp.float32(1.5))


def density(x, mean, scale):
    return -0.5 * ((x - mean) / scale) ** 2 - jnp.log(scale)


def centered(x, axis, own=lambda mean: mean):
    return x - own(x.mean(axis, keepdims=True))


def moments(x, y, s):
    d = centered(x, None)
    return jnp.mean(d**2), jnp.mean(d**3), jnp.mean(d**4)


def moments_by_hand(x, y, s):
    mean = x.mean()
    second, third = own(mean), own(own(mean))
    return jnp.mean((x - mean) ** 2), jnp.mean((x - second) ** 3), jnp.mean((x - third) ** 4)


def correlations(x, y, s):
    a, b = centered(x, 1), centered(y, 1)
    return (a * b).sum(1) / jnp.sqrt((a * a).sum(1) * (b * b).sum(1))


def correlations_by_hand(x, y, s):
    a, b = centered(x, 1), centered(y, 1)
    squares = (centered(x, 1, own) ** 2).sum(1) * (centered(y, 1, own) ** 2).sum(1)
    return (a * b).sum(1) / jnp.sqrt(squares)


def layer_norm(x, y, s):
    d = centered(x, 1)
    return d * lax.rsqrt(jnp.mean(d * d, 1, keepdims=True) + 1e-5)


def layer_norm_by_hand(x, y, s):
    return centered(x, 1) * lax.rsqrt(jnp.mean(centered(x, 1, own) ** 2, 1, keepdims=True) + 1e-5)


def batch_norm_loss(x, y, s):
    d = x - x.mean(0)
    return (jnp.tanh(d * lax.rsqrt(jnp.mean(d * d, 0) + 1e-5) * s) * y).sum()


def discrepancy(x, y, s):
    """The maximum mean discrepancy of two samples, by three kernels."""

    def kernel(a, b):
        d = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1) - 2 * a @ b.T
        return sum(jnp.exp(-d / (32 * (s * scale) ** 2)) for scale in (0.5, 1.0, 2.0))

    return kernel(x, x).mean() + kernel(y, y).mean() - 2 * kernel(x, y).mean()


def left(name, f, args):
    """A program in which XLA's library takes all along, so that nothing is set apart."""
    return Case(name, f, {"as it stands": f}, args, bounds=NEVER_SLOWER)


def entropy(x, y, s):
    return jax.grad(lambda x: (jax.nn.softmax(x) * jax.nn.log_softmax(x)).sum())(x)


def squares(x, y, s):
    return jax.grad(lambda a, b, c: ((a[:, None] * b - c[:, None]) ** 2).sum(), (0, 1, 2))(x[:, 0], y[0], y[:, 1])


CASES = (
    left("layer normalisation of 4,096 rows", lambda x, y, s: layer_norm(x + y, y, s), arrays(4096, 256)),
    left("a softmax with a temperature", lambda x, y, s: (jax.nn.log_softmax(x / s) * y).sum(1), arrays(2048, 256)),
    left("entropies of 8,192 rows, their gradient", entropy, arrays(8192, 256)),
    left("squares over all pairs, their gradient", squares, arrays(4000, 500)),
    Case(
        "sums of exp(-x / s) and exp(-y / s)",
        lambda x, y, s: jnp.exp(-x / s).sum() + jnp.exp(-y / s).sum(),
        {"own scales": lambda x, y, s: jnp.exp(-x / s).sum() + jnp.exp(-y / own(s)).sum()},
        arrays(),
        bounds=BOUNDS,
    ),
    Case(
        "sums with a constant",
        lambda x, y, s: jnp.exp(-0.3 * x).sum() + jnp.exp(-0.3 * y).sum(),
        {"own constants": lambda x, y, s: jnp.exp(-0.3 * x).sum() + jnp.exp(-own(jnp.float32(0.3)) * y).sum()},
        arrays(),
        bounds=BOUNDS,
    ),
    Case(
        "maxima of rows",
        lambda x, y, s: (jnp.max(x * s, 1), jnp.max(y * s, 1)),
        {"own scales": lambda x, y, s: (jnp.max(x * s, 1), jnp.max(y * own(s), 1))},
        arrays(),
        bounds=BOUNDS,
    ),
    Case(
        "two log densities",
        lambda x, y, s: jnp.tanh(density(x, s, s + 1)).sum() + jnp.tanh(density(y, s, s + 1)).sum(),
        {
            "own parameters": lambda x, y, s: (
                jnp.tanh(density(x, s, s + 1)).sum() + jnp.tanh(density(y, own(s), own(s) + 1)).sum()
            )
        },
        arrays(500, 2000),
        grad=(0, 1),
        bounds=BOUNDS,
        grad_bounds=NEVER_SLOWER,
    ),
    Case("central moments", moments, {"own means": moments_by_hand}, arrays(), bounds=BOUNDS),
    Case("correlations of rows", correlations, {"own means": correlations_by_hand}, arrays(), bounds=BOUNDS),
    Case("layer normalisation", layer_norm, {"own means": layer_norm_by_hand}, arrays(2000, 500), bounds=BOUNDS),
    Case(
        "batch normalisation under a loss",
        batch_norm_loss,
        {"as it stands": batch_norm_loss},
        arrays(8192, 128),
        grad=(0, 2),
        bounds=NEVER_SLOWER,
    ),
    Case(
        "maximum mean discrepancy, its gradient",
        lambda x, y, s: jax.value_and_grad(discrepancy)(x, y, s),
        {"as it stands": lambda x, y, s: jax.value_and_grad(discrepancy)(x, y, s)},
        arrays(1024, 16),
        bounds=NEVER_SLOWER,
    ),
)
