"""Claim: work on a large array of an odd number of entries costs what it costs for an even number.

On two to four CPUs XLA gives two threads parts of it. Where these are not equally long, and there is no second axis,
the code is scalar. An expert holds such an array as a number of long rows: in a loop by a reshape around it, elsewhere
in a branch that is always taken, since XLA moves a reshape back past such work. A prime number of entries the expert
fills up before the loop; outside of one, and for differences of neighbours, the last entry is worked on by itself.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

ODD, LONG = 1_000_001, (101, 9_901)
PRIME = 1_000_003
BOUNDS = Bounds(over_hand=1.1, speedup=2.0, memory_over_hand=None)
STEPS = 50


def apart(f, long):
    """f of the entries as long rows, in a branch."""

    def g(x):
        rows = x.reshape(long)
        return jax.lax.cond(rows[0, 0] <= jnp.inf, f, jnp.zeros_like, rows).reshape(x.shape)

    return g


def gelu_gradient(x):
    return jax.grad(lambda x: jnp.sum(jax.nn.gelu(x) * jax.nn.gelu(0.5 * x)))(x)


def double_well(x):
    def step(c, _):
        return c + 0.01 * (c - c * c * c), None

    return jax.lax.scan(step, x, None, length=STEPS)[0]


def double_well_statistics(x):
    def step(c, _):
        c = c + 0.01 * (c - c * c * c)
        return c, (jnp.mean(c), jnp.max(jnp.abs(c)))

    return jax.lax.scan(step, x, None, length=STEPS)


def double_well_on_average(x):
    def step(c, _):
        c = c + 0.01 * (c - c * c * c)
        return c, c

    return jnp.mean(jax.lax.scan(step, x, None, length=STEPS)[1], 0)


def double_well_total(x):
    def step(carry, _):
        c, total = carry
        c = c + 0.01 * (c - c * c * c)
        return (c, total + c), None

    return jax.lax.scan(step, (x, jnp.zeros_like(x)), None, length=STEPS)[0][1] / STEPS


def random_walk(x, key):
    def step(c, k):
        return 0.99 * c + 0.1 * jax.random.normal(k, c.shape), None

    return jax.lax.scan(step, x, jax.random.split(key, 10))[0]


def in_rows(f, long):
    return lambda x, *rest: jax.tree.map(
        lambda y: y.reshape(x.shape) if y.size == x.size else y, f(x.reshape(long), *rest)
    )


def filled(f, size):
    def g(x):
        rows = jnp.concatenate([x, x[: -x.size % size]]).reshape(-1, size)
        return f(rows).reshape(-1)[: x.size]

    return g


def loop(name, f, shape=(ODD,), form=None, bounds=BOUNDS):
    return Case(
        name, f, {"long rows around the loop": form or in_rows(f, LONG)}, lambda: (normal(0, *shape),), bounds=bounds
    )


def but_the_last(f):
    """f of all entries but the last, and of that."""
    return lambda x: jnp.concatenate([f(x[:-1]), f(x[-1:])])


def differences(x):
    return jnp.sqrt(1 + jnp.diff(x) ** 2)


def differences_but_the_last(x):
    return jnp.concatenate([differences(x[:-1]), differences(x[-2:])])


def length(x):
    return jnp.sum(differences(x))


def length_but_the_last(x):
    return length(x[:-1]) + length(x[-2:])


def columns(x):
    """Every third or fourth number of an array, so that inner loops are long."""
    flat, k = x.reshape(-1), x.shape[-1]
    return [jax.lax.slice(flat, (i,), (flat.size,), (k,)) for i in range(k)]


def logsumexp_by_columns(x):
    entries = columns(x)
    m = functools.reduce(jnp.maximum, entries)
    m = jnp.where(jnp.isfinite(m), m, 0)
    return m + jnp.log(sum(jnp.exp(c - m) for c in entries))


def unit_by_columns(x):
    return x / jnp.sqrt(sum(c * c for c in columns(x)))[:, None]


def softmax_losses_gradient(x):
    return jax.grad(lambda x: -jax.nn.log_softmax(x, -1)[:, 0].mean())(x)


def softmax_losses_gradient_by_columns(x):
    entries = columns(x)
    m = functools.reduce(jnp.maximum, entries)
    exps = [jnp.exp(c - m) for c in entries]
    share = 1 / (sum(exps) * len(x))
    return jnp.stack([e * share - (1 / len(x) if k == 0 else 0) for k, e in enumerate(exps)], -1)


def rows(name, f, by_hand, width):
    """A row of short rows, of which there is an odd number."""
    bounds = Bounds(over_hand=1.1, speedup=1.3, memory_over_hand=None)
    return Case(name, f, {"columns, in two parts": by_hand}, lambda: (normal(0, 300_001, width),), bounds=bounds)


CASES = (
    rows("logsumexp of rows of 4", lambda x: jax.nn.logsumexp(x, -1), but_the_last(logsumexp_by_columns), 4),
    rows("gradient of cross-entropies of 3", softmax_losses_gradient, softmax_losses_gradient_by_columns, 3),
    rows("unit vectors", lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), but_the_last(unit_by_columns), 3),
    Case(
        "softplus",
        jax.nn.softplus,
        {"branch": apart(jax.nn.softplus, LONG)},
        lambda: (normal(0, ODD),),
        bounds=BOUNDS,
    ),
    Case(
        "hyperbolic tangent, a prime number",
        jnp.tanh,
        {"as it stands": jnp.tanh},
        lambda: (normal(0, PRIME),),
        bounds=Bounds(over_hand=1.1, memory_over_hand=None),
    ),
    Case(
        "gated",
        lambda x: x * jax.nn.sigmoid(x) + 0.5,
        {"branch": apart(lambda x: x * jax.nn.sigmoid(x) + 0.5, LONG)},
        lambda: (normal(0, ODD),),
        bounds=BOUNDS,
    ),
    Case(
        "gradient of GELU",
        gelu_gradient,
        {"branch": apart(gelu_gradient, LONG)},
        lambda: (normal(0, ODD),),
        bounds=BOUNDS,
    ),
    Case(
        "an odd number of points in space",
        gelu_gradient,
        {"branch": apart(gelu_gradient, (1443, 693))},
        lambda: (normal(0, 333_333, 3),),
        bounds=BOUNDS,
    ),
    Case(
        "gated, a prime number",
        lambda x: x * jax.nn.sigmoid(x) + 0.5,
        {"two parts": but_the_last(lambda x: x * jax.nn.sigmoid(x) + 0.5)},
        lambda: (normal(0, PRIME),),
        bounds=BOUNDS,
    ),
    Case(
        "differences of neighbours",
        differences,
        {"two parts": differences_but_the_last},
        lambda: (normal(0, ODD - 1),),
        bounds=BOUNDS,
    ),
    Case(
        "sum over differences of neighbours",
        length,
        {"two parts": length_but_the_last},
        lambda: (normal(0, ODD - 1),),
        bounds=BOUNDS,
    ),
    loop("carry of a loop", double_well),
    loop("carry of a loop, points in the plane", double_well, (50_001, 2), in_rows(double_well, (21, 4762))),
    loop("carry of a loop, a prime number", double_well, (PRIME,), filled(double_well, 1024)),
    loop("statistics in each step", double_well_statistics),
    loop("mean over the steps", double_well_on_average, form=in_rows(double_well_total, LONG)),
    Case(
        "random walks",
        random_walk,
        {"long rows around the loop": in_rows(random_walk, LONG)},
        lambda: (normal(0, ODD), jax.random.key(0)),
        bounds=BOUNDS,
    ),
)
