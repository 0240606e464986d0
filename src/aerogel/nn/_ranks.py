"""Parameters beside inputs that have more axes: `jax_numpy_rank_promotion="raise"` wants both to have as many."""

from typing import Any

import jax
import jax.numpy as jnp


def aligned(x: Any, value: Any, trailing: int = 0) -> jax.Array:
    """`value` with axes of size 1 before its own, and `trailing` behind, so that it has the rank of `x`."""
    leading = max(jnp.ndim(x) - jnp.ndim(value) - trailing, 0)
    return jnp.expand_dims(value, (*range(leading), *range(-trailing, 0)))
