"""What a frozen leaf is to differentiation: a constant."""

from typing import Any

import jax

from .._jax import Tracer
from ._paths import show_path


def stopped(value: Any, rest: str) -> Any:
    """A child of a node that is built, with `stop_gradient` on the leaf at the path `rest` below it.

    Only tracers are touched: outside of transformations there is nothing to stop, and what a transformation put in the
    place of a leaf is not an array.
    """
    if not rest:
        return jax.lax.stop_gradient(value) if isinstance(value, Tracer) else value
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: stopped(leaf, "") if show_path(path) == rest else leaf, value
    )
