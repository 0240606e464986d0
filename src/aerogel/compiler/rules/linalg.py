"""Linear algebra that is written by its formula."""

from typing import Any

import jax.numpy as jnp

from .rule import rule


@rule(exactness="reassociates", reason="a solve costs a third of an inverse and loses fewer digits")
def inverse_times(A: Any, b: Any) -> Any:
    """The product of an inverse with a vector or a matrix."""
    return jnp.linalg.inv(A) @ b


@inverse_times.to
def _(A: Any, b: Any) -> Any:
    return jnp.linalg.solve(A, b)
