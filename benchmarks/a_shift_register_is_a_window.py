"""Claim: what a loop shifts, or adds in its place at each step, costs what windows of its inputs cost."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)


def rolled(x, weights):
    """A filter whose register is turned and written into."""

    def step(held, one):
        held = jnp.roll(held, 1).at[0].set(one)
        return held, weights @ held

    return lax.scan(step, jnp.zeros_like(weights), x)[1]


def joined(x, weights):
    """A filter whose register is cut and joined."""

    def step(held, one):
        held = jnp.concatenate([one[None], held[:-1]])
        return held, weights @ held

    return lax.scan(step, jnp.zeros_like(weights), x)[1]


def convolved(x, weights):
    """The library's convolution."""
    return jnp.convolve(x, weights)[: len(x)]


def slices(x, weights):
    """A sum of slices, one for each weight."""
    count = len(weights)
    padded = jnp.pad(x, (count - 1, 0))
    return sum(padded[count - 1 - k : count - 1 - k + len(x)] * weights[k] for k in range(count))


def mean_in_a_loop(x):
    """A rolling mean of 30, held in a buffer."""

    def step(held, one):
        held = jnp.roll(held, -1).at[-1].set(one)
        return held, held.mean()

    return lax.scan(step, jnp.zeros(30, x.dtype), x)[1]


def mean_of_slices(x):
    padded = jnp.pad(x, (29, 0))
    return sum(padded[k : k + len(x)] for k in range(30)) / 30


def read_in_turn(x, weights):
    """Windows that a loop reads at its own place."""
    places = jnp.arange(len(x) - len(weights) + 1)
    return lax.scan(lambda c, i: (c, weights @ lax.dynamic_slice(x, (i,), weights.shape)), None, places)[1]


def valid(x, weights):
    return jnp.convolve(x, weights[::-1], mode="valid")


def valid_slices(x, weights):
    count, size = len(weights), len(x) - len(weights) + 1
    return sum(x[k : k + size] * weights[k] for k in range(count))


def powers(x, c):
    """A polynomial, by the matrix of its powers."""
    return jnp.vander(x, len(c)) @ c


def case(name, natural, hands, *sizes, grad=(0, 1)):
    args = lambda: tuple(normal(k, n) for k, n in enumerate(sizes))  # noqa: E731
    return Case(name, natural, hands, args, grad=grad, bounds=BOUNDS, grad_bounds=BOUNDS)


FILTERS = {"convolve": convolved, "slices": slices}
READ = {"convolve": valid, "slices": valid_slices}
CASES = [
    case("turned, 1,000 of 8", rolled, FILTERS, 1000, 8),
    case("turned, 1,000 of 32", rolled, FILTERS, 1000, 32),
    case("turned, 10,000 of 64", rolled, FILTERS, 10_000, 64),
    case("joined, 1,000 of 32", joined, FILTERS, 1000, 32),
    case("joined, 10,000 of 32", joined, FILTERS, 10_000, 32),
    case("rolling mean, 2,000", mean_in_a_loop, {"slices": mean_of_slices}, 2000, grad=(0,)),
    case("rolling mean, 20,000", mean_in_a_loop, {"slices": mean_of_slices}, 20_000, grad=(0,)),
    case("read in turn, 1,000 of 8", read_in_turn, READ, 1000, 8),
    case("read in turn, 10,000 of 32", read_in_turn, READ, 10_000, 32),
    case("polynomial by vander, 1,000", powers, {"polyval": lambda x, c: jnp.polyval(c, x)}, 1000, 5),
    case("polynomial by vander, 100,000", powers, {"polyval": lambda x, c: jnp.polyval(c, x)}, 100_000, 6),
]
