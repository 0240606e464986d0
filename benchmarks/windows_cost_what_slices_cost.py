"""Claim: sums over windows that indices read cost what sums of slices cost, value and gradient; so do their slices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)


def windows(x, size, hop=1):
    """Windows of an array along its first axis, by indices."""
    count = (len(x) - size) // hop + 1
    return x[hop * jnp.arange(count)[:, None] + jnp.arange(size)]


def slices(x, size):
    """The same, as a list of what all windows hold at one place."""
    return [x[k : len(x) - size + 1 + k] for k in range(size)]


def frames(x, size, hop):
    """Windows that are read row by row."""
    count = (len(x) - size) // hop + 1
    return jax.vmap(lambda i: lax.dynamic_slice(x, (i,), (size,)))(hop * jnp.arange(count))


def deviation(parts):
    """The standard deviation of each window."""
    mean = sum(parts) / len(parts)
    return jnp.sqrt(sum((x - mean) ** 2 for x in parts) / len(parts))


def filtered(x, k):
    """Weighted sums of neighbours."""
    return sum(x * k[i] for i, x in enumerate(slices(x, len(k))))


def column_by_column(columns):
    """All windows' entries at one place after the other, in a loop."""
    step = lambda k, total: jnp.maximum(total, jnp.abs(columns(k)) * total.mean() + k)  # noqa: E731
    return lax.fori_loop(0, 32, step, jnp.zeros_like(columns(0)))


def columns_of_windows(x):
    """They are read from windows, by the index of the step."""
    w = windows(x, 32)
    return column_by_column(lambda k: lax.dynamic_index_in_dim(w, k, 1, keepdims=False))


def columns_of_the_array(x):
    """They are read where they are."""
    return column_by_column(lambda k: lax.dynamic_slice(x, (k,), (len(x) - 31,)))


def case(name, natural, hand, args, grad=(0,)):
    """A case with one expert form."""
    return Case(name, natural, {"by hand": hand}, args, grad=grad, bounds=BOUNDS, grad_bounds=BOUNDS)


def pool(fold, start, size):
    """Windows of an image that lie side by side, channels last."""
    return lambda x: lax.reduce_window(x, start, fold, (1, size, size, 1), (1, size, size, 1), "VALID")


def rows_and_columns(fold, size):
    """The same, of strided slices: rows first, then columns."""

    def form(x):
        n, h, w, c = (len_ // size * size if d in (1, 2) else len_ for d, len_ in enumerate(x.shape))
        rows = [lax.slice(x, (0, k, 0, 0), (n, h, w, c), (1, size, 1, 1)) for k in range(size)]
        x = functools.reduce(fold, rows)
        return functools.reduce(fold, [lax.slice(x, (0, 0, k, 0), x.shape, (1, 1, size, 1)) for k in range(size)])

    return form


@jax.custom_vjp
def averages(x):
    """Averages of pairs of pairs, whose gradient repeats what comes back."""
    return rows_and_columns(jnp.add, 2)(x) / 4


def repeated(shape, back):
    """Each number four times."""
    n, h, w, c = shape
    return (jnp.broadcast_to(back[:, :, None, :, None] / 4, (n, h // 2, 2, w // 2, 2, c)).reshape(shape),)


averages.defvjp(lambda x: (averages(x), x.shape), repeated)


def series(n, *more):
    """A series, and weights."""
    return lambda: (normal(0, n), *(normal(1, size) for size in more))


CASES = [
    case(
        "sum of 50, by reduce_window",
        lambda x: lax.reduce_window(x, 0.0, lax.add, (50,), (1,), "VALID"),
        lambda x: sum(slices(x, 50)),
        series(20_000),
    ),
    case("mean of 5", lambda x: windows(x, 5).mean(1), lambda x: sum(slices(x, 5)) / 5, series(100_000)),
    case(
        "mean of 64 of many rows",
        lambda x: x[:, jnp.arange(x.shape[1] - 63)[:, None] + jnp.arange(64)].mean(-1),
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 64), (1, 1), "VALID") / 64,
        lambda: (normal(0, 64, 8192),),
    ),
    case("mean of 40", lambda x: windows(x, 40).mean(1), lambda x: sum(slices(x, 40)) / 40, series(100_000)),
    case(
        "maximum of 7",
        lambda x: windows(x, 7).max(1),
        lambda x: functools.reduce(jnp.maximum, slices(x, 7)),
        series(100_000),
    ),
    case("deviation of 16", lambda x: windows(x, 16).std(1), lambda x: deviation(slices(x, 16)), series(100_000)),
    case("5 weights", lambda x, k: windows(x, 5) @ k, filtered, series(100_000, 5), (0, 1)),
    case("64 weights", lambda x, k: windows(x, 64) @ k, filtered, series(20_000, 64), (0, 1)),
    case(
        "mean of 7 over channels",
        lambda x: windows(x, 7).mean(1),
        lambda x: sum(slices(x, 7)) / 7,
        lambda: (normal(0, 2000, 64),),
    ),
    case(
        "largest of pairs of pairs, channels last",
        pool(lax.max, -jnp.inf, 2),
        rows_and_columns(jnp.maximum, 2),
        lambda: (normal(0, 32, 28, 28, 9),),
        (),
    ),
    case(
        "largest of pairs of pairs behind gelu",
        lambda x: pool(lax.max, -jnp.inf, 2)(jax.nn.gelu(x)),
        lambda x: rows_and_columns(jnp.maximum, 2)(jax.nn.gelu(x)),
        lambda: (normal(0, 8, 64, 64, 32),),
    ),
    case(
        "averages of pairs of pairs",
        lambda x: pool(lax.add, 0.0, 2)(x) / 4,
        averages,
        lambda: (normal(0, 8, 48, 48, 16),),
    ),
    case(
        "averages of 7 x 7",
        lambda x: pool(lax.add, 0.0, 7)(x) / 49,
        lambda x: x.mean((1, 2), keepdims=True),
        lambda: (normal(0, 32, 7, 7, 64),),
    ),
    case("32 places in a loop", columns_of_windows, columns_of_the_array, series(5000), ()),
    case("frames", lambda x: windows(x, 400, 160), lambda x: frames(x, 400, 160), series(100_000)),
    case(
        "energy of frames",
        lambda x: (windows(x, 400, 160) ** 2).sum(1),
        lambda x: (frames(x, 400, 160) ** 2).sum(1),
        series(100_000),
    ),
]
