"""Claim: what is linear in one entry of each row is done for the entry, in losses and their gradients.

Cross-entropies by one-hot labels, of what indices pick, focal losses, smoothed labels: as without labels written out.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)
ROWS, CLASSES, SMOOTHING = 1000, 2000, 0.1


def labels():
    return jax.random.randint(jax.random.key(1), (ROWS,), 0, CLASSES)


def one_hot_loss(z, y):
    return -(jax.nn.one_hot(y, CLASSES) * jnp.log(jax.nn.softmax(z))).sum(-1).mean()


def picked_loss(z, y):
    return -jnp.log(jax.nn.softmax(z))[jnp.arange(ROWS), y].mean()


def focal(z, y):
    p = jax.nn.softmax(z)
    return -(jax.nn.one_hot(y, CLASSES) * (1 - p) ** 2 * jnp.log(p)).sum(-1).mean()


def smoothed(z, y):
    wanted = (1 - SMOOTHING) * jax.nn.one_hot(y, CLASSES) + SMOOTHING / CLASSES
    return -(wanted * jax.nn.log_softmax(z)).sum(-1).mean()


def of_label(z, y):
    return jnp.take_along_axis(z, y[:, None], 1)[:, 0] - jax.nn.logsumexp(z, -1)


def loss_by_hand(z, y):
    return -of_label(z, y).mean()


def focal_by_hand(z, y):
    log_p = of_label(z, y)
    return -((1 - jnp.exp(log_p)) ** 2 * log_p).mean()


def smoothed_by_hand(z, y):
    rest = z.mean(-1) - jax.nn.logsumexp(z, -1)
    return -((1 - SMOOTHING) * of_label(z, y) + SMOOTHING * rest).mean()


def case(name, natural, hand):
    args = lambda: (normal(0, ROWS, CLASSES), labels())  # noqa: E731
    return Case(name, natural, {"of the label": hand}, args, grad=(0,), bounds=BOUNDS, grad_bounds=BOUNDS)


CASES = (
    case("one-hot labels", one_hot_loss, loss_by_hand),
    case("labels that are picked", picked_loss, loss_by_hand),
    case("a focal loss", focal, focal_by_hand),
    case("smoothed labels", smoothed, smoothed_by_hand),
)
