"""Claim: attention computes the scores that its mask leaves, as by hand in groups of queries, value and gradient."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)
GROUPS = 8


def by_triangle(i, j):
    """Keys up to the query."""
    return i >= j


def by_window(i, j, size=128):
    """The last keys up to the query."""
    return (i >= j) & (i - j < size)


def attention(q, k, v, mask=by_triangle, fill=-jnp.inf):
    """Scores of all keys, most of which a mask may remove."""
    i, j = jnp.arange(q.shape[-2])[:, None], jnp.arange(k.shape[-2])
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return jax.nn.softmax(jnp.where(mask(i, j), scores, fill), -1) @ v


def added(q, k, v):
    """The mask as a sum."""
    n = q.shape[-2]
    scores = jnp.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5
    scores = scores + (1 - jnp.tril(jnp.ones((n, n)))) * -1e9
    return jnp.einsum("...ij,...jd->...id", jax.nn.softmax(scores, -1), v)


def in_groups(q, k, v, mask=by_triangle, size=None):
    """Groups of queries, each of which reads the keys that it may see."""
    n = q.shape[-2]
    step, out = n // GROUPS, []
    for first in range(0, n, step):
        last = first + step
        low = 0 if size is None else max(0, first - size + 1)
        i, j = jnp.arange(first, last)[:, None], jnp.arange(low, last)
        scores = q[..., first:last, :] @ k[..., low:last, :].swapaxes(-1, -2) / q.shape[-1] ** 0.5
        out.append(jax.nn.softmax(jnp.where(mask(i, j), scores, -jnp.inf), -1) @ v[..., low:last, :])
    return jnp.concatenate(out, -2)


def in_blocks(q, k, v, size=32):
    """Blocks of queries by a loop, as people write it to save memory."""
    j = jnp.arange(k.shape[0])

    def block(first, rows):
        i = first + jnp.arange(size)[:, None]
        scores = rows @ k.T / rows.shape[-1] ** 0.5
        return first + size, jax.nn.softmax(jnp.where(by_triangle(i, j), scores, -jnp.inf), -1) @ v

    _, out = jax.lax.scan(block, 0, q.reshape(-1, size, q.shape[-1]))
    return out.reshape(q.shape)


def case(name, natural, hand, *shape):
    """A case with one expert form."""
    args = lambda: tuple(normal(k, *shape) for k in range(3))  # noqa: E731
    return Case(name, natural, {"in groups": hand}, args, grad=(0, 1, 2), bounds=BOUNDS, grad_bounds=BOUNDS)


CASES = [
    case("16 heads, 256 places", attention, in_groups, 16, 256, 64),
    case("128 heads, 256 places", attention, in_groups, 128, 256, 32),
    case("8 heads, 512 places", attention, in_groups, 8, 512, 64),
    case("4 heads, 1024 places", attention, in_groups, 4, 1024, 64),
    case("8 heads, 2048 places", attention, in_groups, 8, 2048, 64),
    case("4 examples of 8 heads, 2048 places", attention, in_groups, 4, 8, 2048, 64),
    case("1 head, 4096 places", partial(attention, fill=-1e9), in_groups, 4096, 64),
    case("1 head, 1024 places", partial(attention, fill=-1e9), in_groups, 1024, 64),
    case("1 head, 768 places", attention, in_groups, 768, 32),
    case("the mask is added", added, in_groups, 4, 1024, 64),
    case("in blocks of 32 queries, 2048 places", in_blocks, in_groups, 2048, 64),
    case("the mask is added, 1 head", added, in_groups, 1024, 64),
    case("by vmap", jax.vmap(attention), in_groups, 4, 1024, 64),
    case(
        "a window of 128 keys",
        partial(attention, mask=by_window),
        partial(in_groups, mask=by_window, size=128),
        4,
        1024,
        64,
    ),
]
