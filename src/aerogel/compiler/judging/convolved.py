"""Convolutions in groups, group by group.

XLA's CPU backend (jaxlib 0.10.2) has one kernel of float64 for all groups, with zeros where one does not read the
channels of another: an infinity in one channel is NaN in all of them.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax


def convolved(x: Any, kernel: Any, params: dict[str, Any]) -> Any:
    """What `conv_general_dilated` with these parameters gives; no group sees the channels of another."""
    spec = params["dimension_numbers"]
    of_features, of_batch = params["feature_group_count"], params["batch_group_count"]
    groups = max(of_features, of_batch)
    xs = jnp.split(x, groups, axis=spec.lhs_spec[1 if of_features > 1 else 0])
    kernels = jnp.split(kernel, groups, axis=spec.rhs_spec[0])
    alone = params | {"feature_group_count": 1, "batch_group_count": 1}
    bind = lax.conv_general_dilated_p.bind
    return jnp.concatenate([bind(a, b, **alone) for a, b in zip(xs, kernels, strict=True)], axis=spec.out_spec[1])
