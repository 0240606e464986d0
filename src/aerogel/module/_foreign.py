"""Nodes of other libraries in a module (an Equinox module, a Flax state): their arrays are leaves, the rest is not."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import jax

from ._kinds import Kind, kind_of
from ._paths import LeafKey
from ._values import key_of


@dataclass(frozen=True)
class Split:
    """How another library's node is divided, decided when the module is built.

    Attributes:
        structure: the node's own treedef.
        data: the positions of its leaves that are arrays, or nodes of ours: JAX sees these as such, with their marks.
        keys: the values of its other leaves, as keys, by which two splits are equal.
        paths: where the arrays stand in the node.
        rest: its other leaves, with their positions.
    """

    structure: Any
    data: tuple[int, ...]
    keys: tuple[Hashable, ...]
    paths: tuple[Any, ...] = field(compare=False)
    rest: tuple[tuple[int, Any], ...] = field(compare=False)

    def close(self, value: Any) -> Any:
        """The node with its arrays as children; `value` itself where a transformation put something else."""
        try:
            leaves = self.structure.flatten_up_to(value)
        except (ValueError, TypeError):
            return value
        return Closed(tuple(leaves[i] for i in self.data), self)

    def open(self, value: Any) -> Any:
        """Undoes `close`."""
        if type(value) is not Closed:
            return value
        leaves = dict(zip(self.data, value.leaves, strict=True)) | dict(self.rest)
        return self.structure.unflatten([leaves[i] for i in range(len(leaves))])


@dataclass(frozen=True)
class Closed:
    """What JAX sees in the place of another library's node: its arrays, by their paths."""

    leaves: tuple[Any, ...]
    split: Split


def split_of(value: Any, place: str) -> Split:
    """How `value` is to be divided.

    Raises:
        StructureError: one of its other leaves cannot be hashed.
    """
    found, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda part: kind_of(part) is Kind.NODE)
    data = tuple(i for i, (_, leaf) in enumerate(found) if kind_of(leaf) in (Kind.ARRAY, Kind.NODE))
    rest = tuple((i, leaf) for i, (_, leaf) in enumerate(found) if i not in data)
    keys = tuple(key_of(leaf, place) for _, leaf in rest)
    return Split(structure, data, keys, tuple(LeafKey(found[i][0]) for i in data), rest)


def has_structure(value: Any) -> bool:
    """Whether it is a node of another library, or a named tuple, and any of its leaves is not an array.

    A None in a named tuple is structure as well: in a tree of None it is told from what stands for an array.
    """
    match kind_of(value):
        case Kind.FOREIGN:
            parts = jax.tree.leaves(value)
        case Kind.RECORD:
            parts = jax.tree.leaves(value, is_leaf=lambda part: part is None or kind_of(part) is Kind.NODE)
        case _:
            return False
    return any(kind_of(part) not in (Kind.ARRAY, Kind.NODE) for part in parts)


def holds_data(value: Any) -> bool:
    """Whether any leaf of another library's node is an array."""
    return any(kind_of(leaf) is Kind.ARRAY for leaf in jax.tree.leaves(value))


jax.tree_util.register_pytree_with_keys(
    Closed,
    lambda node: (tuple(zip(node.split.paths, node.leaves, strict=True)), node.split),
    lambda split, leaves: Closed(tuple(leaves), split),
    lambda node: (node.leaves, node.split),
)
