"""One parameter in two places, as a node of its own."""

from collections.abc import Callable
from typing import Any

from aerogel.module import Module

from .._errors import CompatError
from .._transforms import filter_eval_shape
from .._tree import tree_at, tree_equal


class SharedNode:
    """Stands where a shared part stood."""

    def __repr__(self) -> str:
        return "SharedNode"


class Shared(Module):
    """Equinox's `Shared`: a tree in which the part at `where` is that at `get`; called, it gives the tree with both.

    In Aerogel's modules one array or module in two places is one parameter already, and nothing is to be called.
    """

    pytree: Any
    where: Callable[[Any], Any]
    get: Callable[[Any], Any]

    def __init__(self, pytree: Any, where: Callable[[Any], Any], get: Callable[[Any], Any]) -> None:
        source, place = (filter_eval_shape(each, pytree) for each in (get, where))
        if tree_equal(source, place) is not True:
            raise CompatError(
                what="parts that are shared must have one structure, and arrays of one shape and dtype.",
                place="Shared",
                got=f"get: {source}, where: {place}",
                to_fix="let `get` return what fits the places of `where`: a transposed weight, say",
            )
        self.pytree = tree_at(where, pytree, replace_fn=lambda _: SharedNode())
        self.where = where
        self.get = get

    def __call__(self) -> Any:
        """The tree, with the shared part in all its places."""
        return tree_at(self.where, self.pytree, self.get(self.pytree))
