"""Logarithms of what overflows: the forms that stay finite."""

from typing import Any

import jax
import jax.numpy as jnp

from .rule import rule


@rule(exactness="no_worse", reason="a determinant of many factors overflows, the sum of their logarithms does not")
def log_det(A: Any) -> Any:
    """The logarithm of a determinant."""
    return jnp.log(jnp.linalg.det(A))


@log_det.to
def _(A: Any) -> Any:
    sign, size = jnp.linalg.slogdet(A)
    return jnp.where(sign < 0, jnp.nan, size)


@log_det.when
def _(A: Any) -> Any:
    return jnp.issubdtype(A.dtype, jnp.floating) or "complex numbers"


@rule(exactness="no_worse", reason="a determinant of many factors overflows, the sum of their logarithms does not")
def log_abs_det(A: Any) -> Any:
    """The logarithm of the size of a determinant."""
    return jnp.log(jnp.abs(jnp.linalg.det(A)))


@log_abs_det.to
def _(A: Any) -> Any:
    return jnp.linalg.slogdet(A)[1]


@rule(exactness="reassociates", reason="a softmax underflows to 0, whose logarithm is -inf")
def log_of_softmax(x: Any, *, axis: int = -1) -> Any:
    """The logarithm of a softmax."""
    return jnp.log(jax.nn.softmax(x, axis))


@log_of_softmax.to
def _(x: Any, *, axis: int) -> Any:
    return jax.nn.log_softmax(x, axis)


@rule(exactness="reassociates", reason="an exponential of 89 overflows, a log-sum-exp does not")
def log_of_sum_of_exp(x: Any, *, axis: int = -1) -> Any:
    """The logarithm of a sum of exponentials."""
    return jnp.log(jnp.sum(jnp.exp(x), axis))


@log_of_sum_of_exp.to
def _(x: Any, *, axis: int) -> Any:
    return jax.nn.logsumexp(x, axis)


@rule(exactness="reassociates", reason="an exponential of 89 overflows, and 1 + exp(x) loses a small one altogether")
def log_of_one_plus_exp(x: Any) -> Any:
    """A softplus as its formula says."""
    return jnp.log(1 + jnp.exp(x))


@log_of_one_plus_exp.to
def _(x: Any) -> Any:
    return jax.nn.softplus(x)
