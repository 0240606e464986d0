"""Determinants of matrices of at most 8 x 8, by eliminations that are written out.

A determinant is one operation to the compiler, with a derivative of its own, so these are rules for patterns, after
differentiation. Unlike solves they pay for one matrix already, and for larger ones: nothing is kept but the diagonal,
so that all of it is one loop. The same holds for the diagonal of a Cholesky factor, of which nothing else is read.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax.numpy as jnp
from jax import lax

from . import small_linalg as small
from .once import once
from .operand import Operand
from .rule import Rule, rule
from .site import Site

LARGEST = 8
FEWEST = 64  # Cholesky factors: fewer are no slower in LAPACK
_REASON = "LAPACK is called once for each matrix; written out, all of them are one loop"


def _after(before: Callable[..., Any]) -> Rule:
    found = rule(exactness="finite", reason=_REASON, stage="after", platforms=("cpu",))(before)
    found.when(_is_small)
    return found


def _is_small(A: Operand, *, site: Site) -> bool | str:
    n = A.shape[-1]
    if A.dtype not in (jnp.float32, jnp.float64):
        return f"{A.dtype.name} numbers"
    if n == 2:
        return "JAX has a formula for 2 x 2"
    return _refusal(A, site) or True


def _refusal(A: Operand, site: Site) -> str | None:
    n = A.shape[-1]
    if n > LARGEST:
        return f"larger than {LARGEST} x {LARGEST}"
    if A.size == 0:
        return "it has no elements"
    return "its values may be spread over devices" if site.over_devices else None


def _diagonal(A: Any) -> list[Any]:
    """The diagonal of U, of which the product is the determinant: a row that goes down changes its sign."""
    rows = small.entries(A)
    diagonal = list[Any]()
    while rows:
        pivot, *others = rows
        for k, row in enumerate(others):  # the row with the largest entry comes up
            larger = abs(row[0]) > abs(pivot[0])
            down = [jnp.where(larger, -x, y) for x, y in zip(pivot, row, strict=True)]
            pivot = [jnp.where(larger, y, x) for x, y in zip(pivot, row, strict=True)]
            others[k] = down
        diagonal.append(pivot[0])
        rows = small.eliminated(others, pivot)
    return diagonal


def _sign(x: Any) -> Any:
    """0, -1 or 1; 1 for NaN, as JAX has it."""
    one = jnp.ones_like(x)
    return jnp.where(x == 0, 0 * one, jnp.where(x < 0, -one, one))


def _logarithm(diagonal: list[Any]) -> Any:
    return reduce(jnp.add, [jnp.log(abs(d)) for d in diagonal])


@_after
def small_slogdet(A: Any) -> Any:
    """Sign and logarithm."""
    return tuple(jnp.linalg.slogdet(A))


@small_slogdet.to
def _(A: Any) -> Any:
    diagonal = _diagonal(A)
    # The sign is nothing but cheap operations: a gradient would compute it again for each entry of the solve behind it.
    return once(reduce(jnp.multiply, map(_sign, diagonal))), _logarithm(diagonal)


@_after
def small_log_det(A: Any) -> Any:
    """The logarithm alone: what nobody reads is gone from the operation."""
    return jnp.linalg.slogdet(A)[1]


@small_log_det.to
def _(A: Any) -> Any:
    return _logarithm(_diagonal(A))


@_after
def small_det(A: Any) -> Any:
    """The determinant itself; up to 3 x 3 JAX has formulas."""
    return jnp.linalg.det(A)


@small_det.to
def _(A: Any) -> Any:
    return reduce(jnp.multiply, _diagonal(A))


def _factor_diagonal(A: Any) -> Any:
    places = jnp.arange(A.shape[-1])  # of one matrix, jnp.diagonal has another form for each backend
    return lax.linalg.cholesky(A, symmetrize_input=False)[..., places, places]


def _factors(before: Callable[..., Any]) -> Rule:
    return rule(exactness="finite", reason=_REASON, stage="after", platforms=("cpu",))(before)


def _is_real(A: Operand) -> bool | str:
    return A.dtype in (jnp.float32, jnp.float64) or f"{A.dtype.name} numbers"


@_factors
def small_cholesky_log_det(A: Any) -> Any:
    """Half of the logarithm of the determinant of a covariance, by its Cholesky factor."""
    return jnp.sum(jnp.log(_factor_diagonal(A)), -1)


@small_cholesky_log_det.to
def _(A: Any) -> Any:
    return _logarithm(small.cholesky_diagonal(small.entries(A)))


@small_cholesky_log_det.when
def _(A: Operand, *, site: Site) -> bool | str:
    known = _is_real(A)
    return known if isinstance(known, str) else _refusal(A, site) or True


@_factors
def small_cholesky_diagonal(A: Any) -> Any:
    """The diagonal of a Cholesky factor of which nothing else is read: what lies below it is not put together.

    So it stands where a sum of logarithms was cut into entries, too, as one along a short axis is.
    """
    return _factor_diagonal(A)


@small_cholesky_diagonal.to
def _(A: Any) -> Any:
    # XLA would compute all pivots once more for each of several results, unless it stores quotients on the way.
    L = small.cholesky(small.entries(A))
    return jnp.stack([L[k][k] for k in range(len(L))], -1)


@small_cholesky_diagonal.when
def _(A: Operand, *, site: Site) -> bool | str:
    known = _is_real(A)
    if isinstance(known, str):
        return known
    if A.shape[-1] > 2 and A.size * A.examples < FEWEST * A.shape[-1] ** 2:
        return f"fewer than {FEWEST} matrices: LAPACK is no slower"
    return _refusal(A, site) or True


small_cholesky_log_det.begins = small_cholesky_diagonal.begins = {"cholesky": None}
small_slogdet.begins = small_log_det.begins = {"custom_jvp_call log lu reduce_or": None}
small_det.begins = {"custom_jvp_call exp": None}
