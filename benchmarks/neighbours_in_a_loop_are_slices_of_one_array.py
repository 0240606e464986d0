"""Claim: steps that read their neighbours, around a torus or beyond an edge, read slices of an array that exists.

`jnp.roll` and `jnp.pad` join pieces, which XLA fuses into each neighbour that a step reads, as scalar code. An expert
carries the state with its ghost cells.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Bounds, Case, normal

STEPS = 50
AROUND = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
BOUNDS = Bounds(over_hand=1.1, speedup=1.3, memory_over_hand=1.1)


def steps(step):
    """So many of them."""
    return lambda x: lax.scan(lambda x, _: (step(x), None), x, None, length=STEPS)[0]


def alive(cells, neighbours):
    return ((neighbours == 3) | ((cells == 1) & (neighbours == 2))).astype(cells.dtype)


def life(cells):
    return alive(cells, sum(jnp.roll(cells, place, (0, 1)) for place in AROUND))


def ringed(x, mode="wrap"):
    return jnp.pad(x, 1, mode=mode)


def life_by_hand(cells):
    """The ghost cells are a part of the state, so that they are written once."""
    n, m = cells.shape

    def step(p, _):
        neighbours = sum(p[1 + i : 1 + i + n, 1 + j : 1 + j + m] for i, j in AROUND)
        return ringed(alive(p[1:-1, 1:-1], neighbours)), None

    return lax.scan(step, ringed(cells), None, length=STEPS)[0][1:-1, 1:-1]


def around(p):
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * p[1:-1, 1:-1]


def heat(mode):
    return lambda u: u + 0.1 * around(ringed(u, mode))


def heat_by_hand(mode):
    def f(u):
        def step(p, _):
            return ringed(p[1:-1, 1:-1] + 0.1 * around(p), mode), None

        return lax.scan(step, ringed(u, mode), None, length=STEPS)[0][1:-1, 1:-1]

    return f


def reaction(u):
    left, right, up, down = (jnp.roll(u, k, axis) for axis in (1, 0) for k in (1, -1))
    return u - 0.01 * u * (left - right) - 0.1 * jnp.tanh(u) + 0.01 * (left + right + up + down - 4 * u)


def energy(u, step=reaction):
    return jnp.sum(steps(step)(u) ** 2)


@jax.checkpoint
def reaction_by_hand(u):
    """The state alone is stored for the gradient."""
    p = ringed(u)
    flux = u * (p[1:-1, :-2] - p[1:-1, 2:])
    return u - 0.01 * flux - 0.1 * jnp.tanh(u) + 0.01 * around(p)


def roughness(u):
    """Of an image, edges cost less."""
    return sum(jnp.sum(jnp.sqrt(1e-2 + jnp.diff(u, axis=a) ** 2)) for a in range(u.ndim))


def smoothed(u):
    return u - 0.1 * jax.grad(roughness)(u)


def smoothed_by_hand(u):
    """What flows back from each difference is stored, by a branch that is always taken."""

    def flows(u):
        differences = (jnp.diff(u, axis=a) for a in range(u.ndim))
        return [d * lax.rsqrt(1e-2 + d * d) for d in differences]

    def nothing(u):
        return [jnp.zeros_like(y) for y in jax.eval_shape(flows, u)]

    total = jnp.zeros_like(u)
    for a, y in enumerate(lax.cond(u.ravel()[0] <= jnp.inf, flows, nothing, u)):
        before, after = ([(pad if d == a else (0, 0)) for d in range(u.ndim)] for pad in ((1, 0), (0, 1)))
        total += jnp.pad(y, before) - jnp.pad(y, after)
    return u - 0.1 * total


def ring(u):
    return u + 0.1 * (jnp.roll(u, 1) + jnp.roll(u, -1) - 2 * u)


def ring_by_hand(u):
    """The entries of the other end are a part of the state."""

    def step(p, _):
        u = p[1:-1]
        return jnp.pad(u + 0.1 * (p[:-2] + p[2:] - 2 * u), 1, mode="wrap"), None

    return lax.scan(step, jnp.pad(u, 1, mode="wrap"), None, length=STEPS)[0][1:-1]


def walled(u):
    """Between walls that stay as they are."""
    inner = u[1:-1, 1:-1]
    return u.at[1:-1, 1:-1].add(0.1 * around(u) - 0.01 * inner**3)


@jax.checkpoint
def walled_by_hand(u):
    inner = u[1:-1, 1:-1]
    return lax.dynamic_update_slice(u, inner + 0.1 * around(u) - 0.01 * inner**3, (1, 1))


def end(step):
    """The gradient of where steps lead."""
    return jax.grad(lambda u: jnp.sum(steps(step)(u) ** 2))


def cells(*shape):
    return jnp.asarray(np.random.default_rng(0).integers(0, 2, shape), "int32")


CASES = (
    Case(
        "game of life",
        steps(life),
        {"ghost cells in the state": life_by_hand},
        lambda: (cells(256, 256),),
        bounds=BOUNDS,
    ),
    Case(
        "game of life, oblong",
        steps(life),
        {"ghost cells in the state": life_by_hand},
        lambda: (cells(50, 600),),
        bounds=BOUNDS,
    ),
    *(
        Case(
            f"heat between walls ({mode})",
            steps(heat(mode)),
            {"ghost cells in the state": heat_by_hand(mode)},
            lambda size=size: (normal(0, size, size),),
            bounds=BOUNDS,
        )
        for mode, size in (("edge", 100), ("reflect", 512))
    ),
    Case(
        "gradient of a reaction on a torus",
        jax.grad(energy),
        {"checkpointed steps": jax.grad(lambda u: energy(u, reaction_by_hand))},
        lambda: (normal(0, 128, 128),),
        bounds=Bounds(over_hand=1.1, speedup=1.2, memory_over_hand=1.1, memory_saving=1.5),
    ),
    Case(
        "steps down the roughness of an image",
        steps(smoothed),
        {"stored by a branch": steps(smoothed_by_hand)},
        lambda: (normal(0, 200, 200),),
        bounds=Bounds(over_hand=1.1, speedup=3.0, memory_over_hand=1.1),
    ),
    Case("heat on a ring", steps(ring), {"ends in the state": ring_by_hand}, lambda: (normal(0, 2000),), bounds=BOUNDS),
    Case(
        "gradient of heat between walls that stay",
        end(walled),
        {"checkpointed steps": end(walled_by_hand)},
        lambda: (normal(0, 100, 100),),
        bounds=BOUNDS,
    ),
)
