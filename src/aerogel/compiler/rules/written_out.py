"""Products of small matrices written out of elementwise ones, where XLA's own product is slow or cannot stand."""

from math import prod
from typing import Any

import jax
from jax import lax


def as_sum(a: jax.Array, b: jax.Array, numbers: Any) -> jax.Array:
    """`lax.dot_general(a, b, numbers)` as one sum; the columns come last, as a core's vector registers hold them."""
    a, b, batch = _arranged(a, b, numbers)
    rows, columns = a.ndim - batch - 1, b.ndim - batch - 1
    middle = batch + rows
    shape = (*a.shape, *b.shape[batch + 1 :])
    a = lax.broadcast_in_dim(a, shape, range(middle + 1))
    b = lax.broadcast_in_dim(b, shape, [*range(batch), *range(middle, middle + 1 + columns)])
    return lax.reduce_sum(a * b, (middle,))


def term_by_term(a: jax.Array, b: jax.Array, numbers: Any) -> jax.Array:
    """`lax.dot_general(a, b, numbers)` as an addition for each of its terms."""
    a, b, batch = _arranged(a, b, numbers)
    middle = a.ndim - 1
    shape = (*a.shape[:-1], *b.shape[batch + 1 :])

    def term(k: int) -> jax.Array:
        x = lax.index_in_dim(a, k, middle, False)
        y = lax.index_in_dim(b, k, batch, False)
        x = lax.broadcast_in_dim(x, shape, range(middle))
        return x * lax.broadcast_in_dim(y, shape, [*range(batch), *range(middle, len(shape))])

    total = term(0)
    for k in range(1, a.shape[-1]):
        total = total + term(k)
    return total


def _arranged(a: jax.Array, b: jax.Array, numbers: Any) -> tuple[jax.Array, jax.Array, int]:
    """The operands as (batch, rows, terms) and (batch, terms, columns), of one axis of terms; and the batch axes."""
    (a_terms, b_terms), (a_batch, b_batch) = numbers
    rows = [d for d in range(a.ndim) if d not in (*a_terms, *a_batch)]
    columns = [d for d in range(b.ndim) if d not in (*b_terms, *b_batch)]
    batch, terms = [a.shape[d] for d in a_batch], prod(a.shape[d] for d in a_terms)
    a = lax.transpose(a, [*a_batch, *rows, *a_terms]).reshape(*batch, *(a.shape[d] for d in rows), terms)
    b = lax.transpose(b, [*b_batch, *b_terms, *columns]).reshape(*batch, terms, *(b.shape[d] for d in columns))
    return a, b, len(batch)
