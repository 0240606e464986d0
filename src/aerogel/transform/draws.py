"""Random values of any type that a program takes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, scale: float) -> Any:
    """Random numbers of a dtype; keys of a key's."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(rng.integers(0, 1 << 31, (*shape, 2)), "uint32"))
    if dtype == np.bool_:
        return jnp.asarray(rng.random(shape) < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 4, shape), dtype)
    drawn = rng.normal(size=shape) * scale
    return jnp.asarray(drawn + 1j * rng.normal(size=shape) * scale if dtype.kind == "c" else drawn, dtype)
