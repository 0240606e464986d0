"""The names that fields give to the axes of leaves."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from jax.tree_util import GetAttrKey

from ._field import Axes, spec_of
from ._paths import Path
from ._steps import part

Names = tuple[str | None, ...]


class AxisNames:
    """The names of a tree's axes, looked up leaf by leaf.

    The innermost field on the way to a leaf that names axes names the last ones. What fields name that end in `...`
    stands in front: `("layers", ...)` around `("out", "in")` gives `("layers", "out", "in")`.
    """

    def __init__(self, tree: Any) -> None:
        self._nodes: dict[Path, tuple[Any, Names, Names]] = {(): (tree, (), ())}

    def of(self, path: Path, ndim: int) -> Names:
        """A name or None for each of the `ndim` axes of the leaf at a path."""
        _, first, last = self._at(path)
        between = ndim - len(first) - len(last)
        return (*first, *[None] * between, *last) if between >= 0 else (None,) * ndim

    def _at(self, path: Path) -> tuple[Any, Names, Names]:
        """What stands at a path, the names in front, the names of the last axes."""
        if path not in self._nodes:
            node, first, last = self._at(path[:-1])
            key = path[-1]
            axes = _declared(type(node)).get(key.name, ()) if isinstance(key, GetAttrKey) else ()
            if axes and axes[-1] is ...:
                first, last = (*first, *axes[:-1]), ()
            elif axes:
                last = axes
            self._nodes[path] = part(node, key), first, last  # type: ignore[assignment]
        return self._nodes[path]


@functools.cache
def _declared(cls: type) -> Mapping[str, Axes]:
    """The axes that the fields of a class name."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {field.name: spec_of(field).axes for field in fields if spec_of(field).axes}
