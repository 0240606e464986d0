"""One answer for all examples of a rule under `vmap`: a `cond` stays a branch, and no example computes both sides."""

import itertools

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def axis_name(depth: int) -> str:
    """How the axis of examples is called, of the `vmap` around so many others."""
    return f"examples of an Aerogel rule, {depth}"


def anywhere(condition: Array) -> Array:
    """Whether a condition holds in any example, for branches that are right for all examples where it does."""
    found = jnp.any(condition)
    for depth in itertools.count():
        try:
            found = lax.psum(lax.convert_element_type(found, np.int32), axis_name(depth)) > 0
        except NameError:  # no more axes
            break
    return found
