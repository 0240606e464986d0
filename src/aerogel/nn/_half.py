"""Sums of numbers in half precision, which are taken in float32: one in bfloat16 stops to grow at 256 equal entries."""

from typing import Any

import jax
import jax.numpy as jnp

from ._ranks import aligned

HALF = (jnp.bfloat16, jnp.float16)


def is_half(dtype: Any) -> bool:
    """Whether numbers of this dtype are summed in another."""
    return jnp.dtype(dtype) in HALF


def unhalved(tree: Any) -> Any:
    """A tree with its arrays in half precision as float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if hasattr(x, "dtype") and is_half(x.dtype) else x, tree)


def biased(x: jax.Array, bias: Any, trailing: int = 0) -> jax.Array:
    """`x + bias`, with the bias along the last axes of `x` but `trailing`.

    The gradient of a bias is a sum over all other axes. JAX takes it in the dtype of the bias as it is added.
    """
    dtype = jnp.result_type(x, bias)
    x, bias = unhalved((x, aligned(x, bias, trailing)))
    return (x + bias).astype(dtype)
