"""What a frozen leaf is to differentiation: a constant."""

from typing import Any
from weakref import WeakValueDictionary

import jax

from .._jax import Tracer
from ._paths import show_path

_results: WeakValueDictionary[int, Any] = WeakValueDictionary()


def stopped(value: Any, rest: str) -> Any:
    """A child of a node that is built, with `stop_gradient` on the leaf at the path `rest` below it.

    Only tracers are touched: outside of transformations there is nothing to stop, and what a transformation put in the
    place of a leaf is not an array. A tracer that came from here is stopped already: a model that is rebuilt many times
    inside of one trace gets no chain of equations.
    """
    if not rest:
        if not isinstance(value, Tracer) or _results.get(id(value)) is value:
            return value
        result = jax.lax.stop_gradient(value)
        _results[id(result)] = result
        return result
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        return value  # the very object: what stands in the place of a leaf may be a container
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: stopped(leaf, "") if show_path(path) == rest else leaf, value
    )
