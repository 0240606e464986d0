"""Values that are no arrays, on their way through JAX: each stands in its tree as a node without children.

A tree keeps its shape, so that prefix trees (axes, shardings) go on fitting. What is an array is JAX's own decision:
numbers are, also Python's; strings, functions, dtypes and other objects are not.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from aerogel import _jax
from aerogel.module._methods import with_methods
from aerogel.module._values import key_of

_jax.exclude_from_tracebacks(__file__)

_known: dict[type, bool] = {}


def is_static(leaf: Any) -> bool:
    """Whether JAX takes `leaf` for no array."""
    cls = type(leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "OSUMm"
    found = _known.get(cls)
    if found is None:
        found = _known[cls] = not _jax.can_be_traced(leaf)
    return found


def has_statics(tree: Any) -> bool:
    """Whether any leaf is no array."""
    return any(map(is_static, jax.tree.leaves(tree)))


class Static:
    """One value that is no array, as a node: structure, compared by value."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = key_of(value, "a value that is no array")

    def __eq__(self, other: object) -> bool:
        return type(other) is Static and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


jax.tree_util.register_pytree_node(Static, lambda node: ((), node), lambda node, _: node)


def hide(tree: Any) -> Any:
    """The tree with every value that is no array as a `Static`; the tree itself where there is none.

    A method of a module is a node, with the arrays of its module.

    Raises:
        StructureError: one of them cannot be hashed.
    """
    if not has_statics(tree):
        return tree
    return jax.tree.map(lambda leaf: Static(leaf) if is_static(leaf) else leaf, with_methods(tree))


def _is_hidden(node: Any) -> bool:
    return type(node) is Static


def reveal(tree: Any) -> Any:
    """Undoes `hide`."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_hidden)
    if not any(map(_is_hidden, leaves)):
        return tree
    return structure.unflatten([leaf.value if _is_hidden(leaf) else leaf for leaf in leaves])


def between(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` on trees whose values that are no arrays are hidden, in its arguments and in its result."""
    _jax.check_callable(f)

    @_jax.like(f)
    def with_hidden(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = reveal((args, kwargs))
        return hide(f(*args, **kwargs))

    return with_hidden
