"""Claim: what a step of a loop computes of its state, and the step before of the same state, is computed once a step.

An expert carries the force of an integrator along with its state, and a Hamiltonian sampler's gradient.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

STEPS, POINTS, WIDTH = 100, 16_384, 256


def verlet(force):
    def step(state, _):
        q, p = state
        p = p + 0.05 * force(q)
        q = q + 0.1 * p
        return (q, p + 0.05 * force(q)), None

    return lambda q, p: lax.scan(step, (q, p), None, length=STEPS)[0]


def carried(force):
    def step(state, _):
        q, p, now = state
        p = p + 0.05 * now
        q = q + 0.1 * p
        now = force(q)
        return (q, p + 0.05 * now, now), None

    return lambda q, p: lax.scan(step, (q, p, force(q)), None, length=STEPS)[0][:2]


def case(name, force_of, args, bounds):
    def natural(w, q, p):
        return verlet(force_of(w))(q, p)

    def hand(w, q, p):
        return carried(force_of(w))(q, p)

    return Case(name, natural, {"the force is carried": hand}, args, bounds=bounds)


def pendulums(w):
    return lambda q: -w * jnp.sin(q)


def posterior(w):
    """The gradient of a logistic regression's log density, as in a Hamiltonian sampler."""
    return jax.grad(lambda q: -jnp.sum(jax.nn.softplus(w @ q)) - 0.5 * q @ q)


def of_points():
    return normal(0, POINTS) / 4, normal(1, POINTS), normal(2, POINTS)


def of_data():
    return normal(0, 4096, WIDTH) / 16, normal(1, WIDTH), normal(2, WIDTH)


def mandelbrot(c):
    """XLA computes an absolute value for each kernel that reads it: one from the step before would be one more."""

    def step(_, state):
        z, steps = state
        z = jnp.where(jnp.abs(z) < 2, z * z + c, z)
        return z, steps + (jnp.abs(z) < 2)

    return lax.fori_loop(0, 50, step, (jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32)))[1]


def plane():
    return (jnp.linspace(-2, 1, 200) + 1j * jnp.linspace(-1.2, 1.2, 150)[:, None],)


CASES = (
    Case("Mandelbrot set", mandelbrot, {"plain": mandelbrot}, plane, bounds=Bounds(over_hand=None)),
    case("pendulums", pendulums, of_points, Bounds(speedup=1.3)),
    case("Hamiltonian sampler", posterior, of_data, Bounds(speedup=1.5)),
)
