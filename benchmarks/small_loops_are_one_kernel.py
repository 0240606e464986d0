"""Claim: a loop whose steps are small kernels costs what they compute, not what starting and sharing them costs.

The expert's form is a flag for the whole process, set before JAX is imported: the natural form is compiled under it in
another process, and run beside the others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

FLAGS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536"


def kalman(model, ys):
    """The mean square of what a Kalman filter did not foresee."""
    f, h, q = model

    def step(state, y):
        mean, cov = f @ state[0], f @ state[1] @ f.T + q
        gain = cov @ h.T / ((h @ cov @ h.T)[0, 0] + 0.1)
        off = y - h @ mean
        return (mean + gain @ off, cov - gain @ h @ cov), off

    size = len(f)
    return jnp.mean(lax.scan(step, (jnp.zeros(size), jnp.eye(size)), ys)[1] ** 2)


def model(size):
    f = 0.9 * jnp.eye(size) + 0.03 * normal(0, size, size)
    return (f, normal(1, 1, size), 0.01 * jnp.eye(size)), normal(2, 200, 1)


def markov(trans, scores):
    """The log probability of what a hidden Markov model has seen."""

    def step(alpha, score):
        return jax.nn.logsumexp(alpha[:, None] + trans, 0) + score, None

    return jax.nn.logsumexp(lax.scan(step, scores[0], scores)[0])


def lstm(w, u, xs):
    """One sequence."""

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros(len(u))
    return jnp.mean(lax.scan(step, (zeros, zeros), xs)[1] ** 2)


def metropolis(key, x):
    """A random walk through a normal distribution."""

    def step(state, _):
        key, x = state
        key, move, accept = jax.random.split(key, 3)
        y = x + 0.3 * jax.random.normal(move, x.shape)
        taken = jnp.log(jax.random.uniform(accept)) < 0.5 * (x @ x - y @ y)
        return (key, jnp.where(taken, y, x)), x

    return lax.scan(step, (key, x), None, length=200)[1]


def lorenz(*state):
    """Runge-Kutta steps of many trajectories."""

    def slope(x, y, z):
        return 10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z

    def moved(state, slopes, time):
        return tuple(s + time * d for s, d in zip(state, slopes, strict=True))

    def step(_, s):
        a = slope(*s)
        b = slope(*moved(s, a, 0.005))
        c = slope(*moved(s, b, 0.005))
        d = slope(*moved(s, c, 0.01))
        return moved(s, [p + 2 * q + 2 * r + t for p, q, r, t in zip(a, b, c, d, strict=True)], 0.01 / 6)

    return lax.fori_loop(0, 200, step, state)


def chain(x):
    """Springs between neighbours, with a wall."""

    def step(_, s):
        x, v = s
        v = v + 0.01 * (jnp.roll(x, 1) + jnp.roll(x, -1) - 2 * x)
        return lax.cond(x[0] > 1, lambda: (0.9 * x, -v), lambda: (x + 0.01 * v, v))

    return lax.fori_loop(0, 500, step, (x, jnp.zeros_like(x)))[0]


def pendulums(angle, speed):
    """A sine of few entries a step."""

    def step(s, _):
        angle, speed = s
        speed = speed - 0.01 * jnp.sin(angle)
        return (angle + 0.01 * speed, speed), None

    return jnp.sum(lax.scan(step, (angle, speed), None, length=500)[0][0] ** 2)


def recurrence(a, x):
    """A product and a tangent a step: the gradient's sum is a few microseconds in or out of the loop."""
    return jnp.sum(lax.scan(lambda x, _: (jnp.tanh(a @ x),) * 2, x, None, length=200)[1] ** 2)


def case(name, f, args, speedup, grad=(), grad_speedup=None):
    bounds = [Bounds(speedup=least) for least in (speedup, grad_speedup)]
    return Case(name, f, {}, args, grad, flags=FLAGS, bounds=bounds[0], grad_bounds=bounds[1])


CASES = (
    case("Kalman filter of 4 states", kalman, lambda: model(4), 4.0, (0,), 4.0),
    case("Kalman filter of 8 states", kalman, lambda: model(8), 2.0, (0,), 2.0),
    case("Kalman filter of 12 states", kalman, lambda: model(12), 1.5, (0,), 1.5),
    case("hidden Markov model of 8", markov, lambda: (normal(0, 8, 8), normal(1, 200, 8)), None, (0,), 2.0),
    case("hidden Markov model of 32", markov, lambda: (normal(0, 32, 32), normal(1, 200, 32)), None, (0,), 1.1),
    case(
        "LSTM of 8",
        lstm,
        lambda: (0.3 * normal(0, 8, 32), 0.3 * normal(1, 8, 32), normal(2, 100, 8)),
        None,
        (0, 1),
        1.5,
    ),
    case("random walk in 100 dimensions", metropolis, lambda: (jax.random.key(0), normal(1, 100)), 1.5),
    case("1,000 trajectories", lorenz, lambda: tuple(normal(k, 1000) for k in range(3)), 1.5),
    case("a chain of 100", chain, lambda: (normal(0, 100),), 1.2),
    case("64 pendulums", pendulums, lambda: (normal(0, 64), normal(1, 64)), None, (0,)),
    case("recurrence of 8", recurrence, lambda: (0.3 * normal(0, 8, 8), normal(1, 8)), None, (0,)),
)
