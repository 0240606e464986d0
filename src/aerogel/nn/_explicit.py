"""Shardings that types carry, where axes of a mesh are explicit: what a layer makes anew follows its input."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def beside(x: Any, axes: int) -> NamedSharding | None:
    """The sharding of an array with the first `axes` axes of `x` and a last one that is whole.

    None where the type of `x` splits none of its axes: then XLA decides.
    """
    sharding = jax.typeof(x).sharding
    if not any(sharding.spec):
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:axes], None))
