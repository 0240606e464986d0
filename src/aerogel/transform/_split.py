"""A tree divided into its arrays and the rest, as one node: how trees with other values cross a boundary quickly.

Beside `Static`, which keeps a tree's shape, this is the way for calls of compiled functions: it builds no tree.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import jax
from jax.tree_util import GetAttrKey

from aerogel import _jax
from aerogel.module import Module
from aerogel.module._methods import is_method, with_methods
from aerogel.module._values import key_of

from ._static import is_static

_jax.exclude_from_tracebacks(__file__)

_layouts: WeakValueDictionary[Hashable, "Layout"] = WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class Layout:
    """A structure, and the leaves of it that are no arrays, by position. Interned: equal ones are one object."""

    structure: Any
    statics: tuple[tuple[int, Any], ...]

    def whole(self, arrays: Any) -> Any:
        """The tree with these arrays in it."""
        leaves = list(arrays)
        for position, value in self.statics:
            leaves.insert(position, value)
        return self.structure.unflatten(leaves)


class Split:
    """A tree that holds something else than arrays."""

    __slots__ = ("arrays", "layout")

    def __init__(self, arrays: tuple[Any, ...], layout: Layout) -> None:
        self.arrays = arrays
        self.layout = layout

    def whole(self) -> Any:
        """The tree."""
        return self.layout.whole(self.arrays)


def _divided(node: Split) -> tuple[tuple[Any, ...], Layout]:
    return (node.arrays,), node.layout


# Trees are divided before JAX sees them, and what C++ code returns is whole.
_jax.register_node(
    Split,
    _divided,
    lambda layout, children: Split(children[0], layout),
    lambda node: (((GetAttrKey("arrays"), node.arrays),), node.layout),
    _divided,
    lambda layout, children: layout.whole(children[0]),
)


def split(tree: Any, place: str = "a value that is no array") -> Any:
    """The tree as a `Split`; the tree itself if all of its leaves are arrays.

    Raises:
        StructureError: one of its other leaves cannot be hashed.
    """
    # Modules hold arrays only, and need no look inside.
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda node: isinstance(node, Module))
    chosen = [(i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, Module) and is_static(leaf)]
    if not chosen:
        return tree
    if any(is_method(leaf) for _, leaf in chosen):
        return split(with_methods(tree), place)
    key = structure, tuple((i, key_of(leaf, place)) for i, leaf in chosen)
    with _lock:
        layout = _layouts.get(key)
        if layout is None:
            layout = _layouts[key] = Layout(structure, tuple(chosen))
    positions = {i for i, _ in chosen}
    return Split(tuple(leaf for i, leaf in enumerate(leaves) if i not in positions), layout)


def joined(value: Any) -> Any:
    """Undoes `split`."""
    return value.whole() if type(value) is Split else value


def differs(given: tuple[Any, Any], divided: tuple[Any, Any]) -> bool:
    """Whether any of these arguments, positional and named, has become another object."""
    (args, kwargs), (new_args, new_kwargs) = given, divided
    return any(x is not y for x, y in zip((*args, *kwargs.values()), (*new_args, *new_kwargs.values()), strict=True))


def through(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` on arguments that were divided; its result is divided too."""

    @_jax.like(f)
    def with_split(*args: Any, **kwargs: Any) -> Any:
        out = f(*map(joined, args), **{name: joined(value) for name, value in kwargs.items()})
        return split(out, "result")

    return with_split


def divider(static: tuple[tuple[int, ...], tuple[str, ...]]) -> Callable[[Any, Any], tuple[tuple[Any, ...], Any]]:
    """A function of `args` and `kwargs` that divides those with something else than arrays in them, but static ones."""
    numbers, names = static

    def divide(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        fixed = {i if i >= 0 else i + len(args) for i in numbers}
        return (
            tuple([x if i in fixed else split(x, f"argument {i}") for i, x in enumerate(args)]),
            {name: x if name in names else split(x, f"argument {name!r}") for name, x in kwargs.items()},
        )

    return divide
