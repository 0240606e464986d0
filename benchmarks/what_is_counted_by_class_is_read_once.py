"""Claim: sums, means and counts by class read each row once, however the classes are told apart.

By one-hot rows, by masks written one by one in a list or mapped over the classes: XLA's CPU backend writes out the
one-hot matrix, or a masked copy for each class. An expert adds rows where their class says. Searches in short tables,
which histograms are made of, compare with each entry in vector code.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

FASTER = Bounds(over_hand=1.10, speedup=1.5, memory_over_hand=None)
CLOSE = Bounds(over_hand=1.35, speedup=1.5, memory_over_hand=None)
ROWS, CLASSES, WIDTH = 100_000, 24, 12


def labels(seed, count=ROWS, classes=CLASSES):
    return jax.random.randint(jax.random.key(seed), (count,), 0, classes)


def counted(y):
    return jax.nn.one_hot(y, CLASSES).sum(0)


def counted_by_hand(y):
    return jnp.zeros(CLASSES, jnp.int32).at[y].add(1).astype(jnp.float32)


def confused(y, p):
    return jax.nn.one_hot(y, CLASSES).T @ jax.nn.one_hot(p, CLASSES)


def confused_by_hand(y, p):
    flat = jnp.zeros(CLASSES * CLASSES, jnp.int32).at[y * CLASSES + p].add(1)
    return flat.reshape(CLASSES, CLASSES).astype(jnp.float32)


def summed(x, y):
    return jax.nn.one_hot(y, CLASSES).T @ x


def summed_by_hand(x, y):
    return jnp.zeros((CLASSES, WIDTH)).at[y].add(x)


def means(x, y):
    return jnp.stack([jnp.mean(x, 0, where=(y == k)[:, None]) for k in range(CLASSES)])


def mapped_means(x, y):
    return jax.vmap(lambda k: jnp.mean(x, 0, where=(y == k)[:, None]))(jnp.arange(CLASSES))


def means_by_hand(x, y):
    return summed_by_hand(x, y) / counted_by_hand(y)[:, None]


def maxima(x, y):
    """What has no sum by class: no loop of as many passes, which took 1.5 (gradient 3.3) times as long."""
    return jnp.stack([jnp.max(jnp.where(y == k, x, -jnp.inf)) for k in range(CLASSES)])


def binned(x):
    return jnp.histogram(x, bins=40, range=(-3.0, 3.0))[0]


def binned_by_hand(x):
    """Of even bins alone; what lies at an edge may be counted beside it."""
    k = jnp.where(x == 3.0, 39, jnp.floor((x + 3) * (40 / 6)).astype(jnp.int32))
    return jnp.zeros(40, jnp.int32).at[jnp.where(x > 3.0, 40, k)].add(jnp.where(x >= -3.0, 1, 0), mode="drop")


def case(name, natural, hand, args, bounds=FASTER, grad=(), grad_bounds=FASTER):
    return Case(name, natural, {"by hand": hand}, args, grad=grad, bounds=bounds, grad_bounds=grad_bounds)


def rows():
    return normal(0, ROWS, WIDTH), labels(1)


CASES = (
    case("one-hot rows, summed", counted, counted_by_hand, lambda: (labels(1),)),
    case("a confusion matrix by one-hot rows", confused, confused_by_hand, lambda: (labels(1), labels(2)), CLOSE),
    case("sums by one-hot rows", summed, summed_by_hand, rows, grad=(0,)),
    case("means by masks in a list", means, means_by_hand, rows, CLOSE, grad=(0,)),
    case("means by masks under vmap", mapped_means, means_by_hand, rows, CLOSE, grad=(0,), grad_bounds=CLOSE),
    case(
        "maxima by masks in a list",
        maxima,
        maxima,
        lambda: (normal(0, ROWS), labels(1)),
        Bounds(),
        grad=(0,),
        grad_bounds=Bounds(),
    ),
    case(
        "a histogram of 40 bins",
        binned,
        binned_by_hand,
        lambda: (normal(0, ROWS),),
        Bounds(over_hand=2.0, speedup=1.5, memory_over_hand=None),
    ),
)
