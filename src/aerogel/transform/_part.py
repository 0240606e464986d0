"""A tree divided for differentiation: into leaves that have a gradient and are meant, and the rest."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import jax

from aerogel import _jax
from aerogel.module._frozen import frozen_mask
from aerogel.module._methods import with_methods
from aerogel.module._paths import show_path
from aerogel.module._select import Where, check_where, leaf_mask

from ._static import is_static

_jax.exclude_from_tracebacks(__file__)


class Part:
    """One argument, divided into what it is differentiated by and the rest."""

    def __init__(self, tree: Any, wrt: Where | None = None, allow_int: bool = False) -> None:
        tree = with_methods(tree)
        self.leaves, self._structure = jax.tree.flatten(tree)
        self.paths = [show_path(path) for path, _ in jax.tree.leaves_with_path(tree)]
        mask = chosen_mask(tree, wrt, allow_int)
        self._positions = [i for i, is_chosen in enumerate(mask) if is_chosen]
        self.chosen = [self.leaves[i] for i in self._positions]

    @property
    def rest(self) -> list[Any]:
        """The leaves that were not chosen."""
        positions = set(self._positions)
        return [leaf for i, leaf in enumerate(self.leaves) if i not in positions]

    def with_leaves(self, chosen: Sequence[Any], rest: Sequence[Any]) -> "Part":
        """The same division of other leaves."""
        new = copy(self)
        ours, others, positions = iter(chosen), iter(rest), set(self._positions)
        new.leaves = [next(ours) if i in positions else next(others) for i in range(len(self.leaves))]
        new.chosen = list(chosen)
        return new

    def whole(self, chosen: Sequence[Any]) -> Any:
        """The argument with other values in the chosen places."""
        leaves = list(self.leaves)
        for i, leaf in zip(self._positions, chosen, strict=True):
            leaves[i] = leaf
        return self._structure.unflatten(leaves)

    def of_tree(self, tangents: Any) -> list[Any]:
        """Undoes `tree_of`. None, in the place of a leaf or of more, stands for no tangent, which are zeros."""
        if tangents is None:
            return [jax.numpy.zeros_like(leaf) for leaf in self.chosen]
        found = self._structure.flatten_up_to(tangents)
        given = [found[i] for i in self._positions]
        return [
            jax.numpy.zeros_like(leaf) if tangent is None else tangent
            for leaf, tangent in zip(self.chosen, given, strict=True)
        ]

    def tree_of(self, grads: Sequence[Any]) -> Any:
        """The tree of these gradients or tangents, one for each chosen leaf, with None for the others."""
        leaves: list[Any] = [None] * len(self.leaves)
        for i, leaf in zip(self._positions, grads, strict=True):
            leaves[i] = leaf
        return self._structure.unflatten(leaves)


def chosen_mask(tree: Any, wrt: Where | None, allow_int: bool = False) -> list[bool]:
    """For each leaf of an argument, whether it is differentiated by."""
    leaves = jax.tree.leaves(tree)
    check_where(wrt, "wrt")
    meant = (True,) * len(leaves) if wrt is None else leaf_mask(tree, wrt)
    return [
        is_meant and not is_frozen and _has_gradient(leaf, allow_int)
        for leaf, is_meant, is_frozen in zip(leaves, meant, frozen_mask(tree), strict=True)
    ]


def _has_gradient(leaf: Any, allow_int: bool) -> bool:
    if is_static(leaf):
        return False
    dtype = jax.typeof(leaf).dtype
    return jax.dtypes.issubdtype(dtype, jax.numpy.inexact) or (
        allow_int and not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
    )
