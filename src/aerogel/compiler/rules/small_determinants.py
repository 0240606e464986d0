"""Determinants of matrices of at most 4 x 4, by LU factors that are written out.

A determinant is one operation to the compiler, with a derivative of its own, so these are rules for patterns, after
differentiation. Unlike solves they pay for one matrix already: all of it is one loop.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax.numpy as jnp

from . import small_linalg as small
from .once import once
from .operand import Operand
from .rule import Rule, rule
from .site import Site

_REASON = "LAPACK is called once for each matrix; written out, all of them are one loop"


def _after(before: Callable[..., Any]) -> Rule:
    found = rule(exactness="finite", reason=_REASON, stage="after", platforms=("cpu",))(before)
    found.when(_is_small)
    return found


def _is_small(A: Operand, *, site: Site) -> bool | str:
    n = A.shape[-1]
    if A.dtype not in (jnp.float32, jnp.float64):
        return f"{A.dtype.name} numbers"
    if n == 2 or n > small.LARGEST:
        return "JAX has a formula for 2 x 2" if n == 2 else f"larger than {small.LARGEST} x {small.LARGEST}"
    if A.size == 0:
        return "it has no elements"
    return "its values may be spread over devices" if site.over_devices else True


def _diagonal(A: Any) -> tuple[Any, list[Any]]:
    """The sign that row exchanges give a determinant, and the diagonal of U."""
    factors, pivots, _ = small.lu(small.entries(A))
    one = jnp.ones_like(factors[0][0])
    signs = [jnp.where(pivot == k, one, -one) for k, pivot in enumerate(pivots)]
    return reduce(jnp.multiply, signs), [factors[k][k] for k in range(len(factors))]


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
    sign, diagonal = _diagonal(A)
    # The sign is nothing but cheap operations: a gradient would compute it again for each entry of the solve behind it.
    return once(reduce(jnp.multiply, map(_sign, diagonal), sign)), _logarithm(diagonal)


@_after
def small_log_det(A: Any) -> Any:
    """The logarithm alone: what nobody reads is gone from the operation."""
    return jnp.linalg.slogdet(A)[1]


@small_log_det.to
def _(A: Any) -> Any:
    return _logarithm(_diagonal(A)[1])


@_after
def small_det(A: Any) -> Any:
    """The determinant itself; up to 3 x 3 JAX has formulas."""
    return jnp.linalg.det(A)


@small_det.to
def _(A: Any) -> Any:
    sign, diagonal = _diagonal(A)
    return reduce(jnp.multiply, diagonal, sign)


small_slogdet.begins = small_log_det.begins = {"custom_jvp_call log lu reduce_or": None}
small_det.begins = {"custom_jvp_call exp": None}
