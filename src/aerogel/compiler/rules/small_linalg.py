"""Linear algebra of many matrices of at most 4 x 4, written out: entries are arrays over the batch.

LAPACK is called once for each matrix, and for so small a one the call is all there is to pay. Here entry (i, j) of
all matrices is one array, and elimination is a few dozen elementwise operations, which vectorise. Rows are exchanged
by selects, so that pivots are LAPACK's and the error is too.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
from jax import lax

LARGEST = 4

Row = list[Any]


def entries(A: Any) -> list[Row]:
    """The entries of matrices in the last two axes, as arrays over the others."""

    def entry(i: int, j: int) -> Any:
        return lax.index_in_dim(lax.index_in_dim(A, i, A.ndim - 2, False), j, A.ndim - 2, False)

    return [[entry(i, j) for j in range(A.shape[-1])] for i in range(A.shape[-2])]


def assembled(M: Sequence[Sequence[Any]]) -> Any:
    """Matrices, of their entries; the last two axes count rows and columns."""
    return jnp.stack([jnp.stack(list(row), -1) for row in M], -2)


def _exchanged(swap: Any, a: Row, b: Row) -> tuple[Row, Row]:
    """Two rows, the other way round where `swap`."""
    return (
        [jnp.where(swap, y, x) for x, y in zip(a, b, strict=True)],
        [jnp.where(swap, x, y) for x, y in zip(a, b, strict=True)],
    )


def eliminated(rows: Sequence[Row], pivot: Row) -> list[Row]:
    """What is left of rows behind their first entries when so many of the pivot's are taken that these are 0.

    One reciprocal serves them all, as in LAPACK: of several quotients XLA would store each.
    """
    inverse = _quotient(jnp.ones_like(pivot[0]), pivot[0])
    factors = [row[0] * inverse for row in rows]
    return [[x - f * y for x, y in zip(row[1:], pivot[1:], strict=True)] for f, row in zip(factors, rows, strict=True)]


def _quotient(x: Any, pivot: Any) -> Any:
    """`x / pivot`, and 0 where a whole column is 0: then nothing is left to eliminate."""
    return x / jnp.where(pivot == 0, jnp.ones_like(pivot), pivot)


def solve(M: Sequence[Row], B: Sequence[Row]) -> list[Row]:
    """The X of M X = B, by elimination with partial pivoting."""
    n = len(M)
    rows = [[*m, *b] for m, b in zip(M, B, strict=True)]
    for c in range(n):
        for r in range(c + 1, n):  # the row with the largest entry comes up
            larger = abs(rows[r][c]) > abs(rows[c][c])
            above, below = _exchanged(larger, rows[c][c:], rows[r][c:])
            rows[c], rows[r] = rows[c][:c] + above, rows[r][:c] + below
        for r in range(c + 1, n):
            factor = _quotient(rows[r][c], rows[c][c])
            new = [x - factor * y for x, y in zip(rows[r][c + 1 :], rows[c][c + 1 :], strict=True)]
            rows[r] = [*rows[r][: c + 1], *new]
    return substitute([row[:n] for row in rows], [row[n:] for row in rows], lower=False)


def substitute(T: Sequence[Row], B: Sequence[Row], *, lower: bool, unit: bool = False) -> list[Row]:
    """The X of T X = B for triangular matrices; `unit` takes their diagonal for ones."""
    n = len(T)
    X: list[Row] = [[] for _ in range(n)]
    for i in range(n) if lower else reversed(range(n)):
        done = range(i) if lower else range(i + 1, n)
        row = list(B[i])
        for j in done:
            row = [x - T[i][j] * y for x, y in zip(row, X[j], strict=True)]
        X[i] = row if unit else [x / T[i][i] for x in row]
    return X


def cholesky(M: Sequence[Row]) -> list[Row]:
    """The lower triangular factors of positive definite matrices, of which the lower triangles are read.

    NaN throughout for a matrix that is not positive definite, as from LAPACK.
    """
    n = len(M)
    zero = jnp.zeros_like(M[0][0])
    L = [[zero] * n for _ in range(n)]
    bad = zero != zero
    for j in range(n):
        pivot = M[j][j]
        for k in range(j):
            pivot = pivot - L[j][k] * L[j][k]
        bad = bad | (pivot <= 0)  # NaN is no failure to LAPACK: it spreads to what is computed from it
        L[j][j] = jnp.sqrt(pivot)
        for i in range(j + 1, n):
            value = M[i][j]
            for k in range(j):
                value = value - L[i][k] * L[j][k]
            L[i][j] = value / L[j][j]
    nan = jnp.full_like(zero, jnp.nan)
    return [[jnp.where(bad, nan, x) for x in row] for row in L]


def cholesky_diagonal(M: Sequence[Row]) -> list[Any]:
    """The diagonals of the factors that `cholesky` gives: roots of what is left on the diagonal by an elimination."""
    rows, pivots = [list(row) for row in M], list[Any]()
    while rows:  # the lower triangle is what is read, and what is left
        pivots.append(rows[0][0])
        inverse = _quotient(jnp.ones_like(rows[0][0]), rows[0][0])
        column = [row[0] for row in rows[1:]]
        factors = [x * inverse for x in column]
        rows = [
            [x - f * y for x, y in zip(row[1:], column, strict=False)] for row, f in zip(rows[1:], factors, strict=True)
        ]
        rows = [row[: k + 1] for k, row in enumerate(rows)]
    bad = reduce(jnp.logical_or, [pivot <= 0 for pivot in pivots])
    return [jnp.where(bad, jnp.full_like(pivot, jnp.nan), jnp.sqrt(pivot)) for pivot in pivots]


def lu(M: Sequence[Row]) -> tuple[list[Row], list[Any], list[Any]]:
    """The factors of P M = L U in one matrix, the rows that were exchanged, and P as a list of rows."""
    n = len(M)
    zero = jnp.zeros_like(M[0][0], dtype=jnp.int32)
    rows = [list(row) for row in M]
    order, pivots = [zero + i for i in range(n)], []
    for c in range(n):
        best, at = abs(rows[c][c]), zero + c
        for r in range(c + 1, n):
            larger = abs(rows[r][c]) > best
            best, at = jnp.where(larger, abs(rows[r][c]), best), jnp.where(larger, r, at)
        for r in range(c + 1, n):  # the first row with the largest entry, and no other, changes places
            here = at == r
            rows[c], rows[r] = _exchanged(here, rows[c], rows[r])
            (order[c],), (order[r],) = _exchanged(here, [order[c]], [order[r]])
        pivots.append(at)
        for r in range(c + 1, n):
            factor = _quotient(rows[r][c], rows[c][c])
            new = [x - factor * y for x, y in zip(rows[r][c + 1 :], rows[c][c + 1 :], strict=True)]
            rows[r] = [*rows[r][:c], factor, *new]
    return rows, pivots, order
