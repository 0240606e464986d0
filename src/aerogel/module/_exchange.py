"""What a module holds while its `__init__` runs: parts in lists, dicts and tuples that are still Python's own."""

import copy
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ._form import BUILDING
from ._kinds import Kind, kind_of


def is_part(value: Any) -> bool:
    """Whether a value is a node that is finished: a module, a frozen container, a node of another library."""
    return kind_of(value) in (Kind.NODE, Kind.FOREIGN) and getattr(value, "_form", None) is not BUILDING


def parts_in(value: Any, seen: set[int]) -> Iterator[Any]:
    """The finished nodes in a value, itself or what its containers hold, each once: those in `seen` are left out."""
    if id(value) in seen:
        return
    seen.add(id(value))
    match kind_of(value):
        case Kind.LIST | Kind.TUPLE | Kind.RECORD:
            for item in value:
                yield from parts_in(item, seen)
        case Kind.DICT:
            for item in value.values():
                yield from parts_in(item, seen)
        case Kind.METHOD:
            yield from parts_in(value.__self__, seen)
        case _:
            if is_part(value):
                yield value


def containers_in(values: Iterable[Any]) -> set[int]:
    """The ids of the lists and dicts in values, also inside each other."""
    found: set[int] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if id(value) in found:
            continue
        match kind_of(value):
            case Kind.LIST | Kind.DICT:
                found.add(id(value))
                pending += value.values() if isinstance(value, dict) else value
            case Kind.TUPLE | Kind.RECORD:
                pending += value
            case _:
                pass
    return found


class Exchange:
    """Puts other parts into what a module holds, the same for the same. Lists and dicts change in place."""

    def __init__(self, replace: Callable[[Any], Any], borrowed: set[int]) -> None:
        """An exchange for one module that is being built.

        Args:
            replace: gives for a finished node another one, or itself.
            borrowed: the ids of containers that are somebody else's: they are copied.
        """
        self._replace = replace
        self._borrowed = borrowed
        self._known: dict[int, tuple[Any, Any]] = {}  # with the values themselves: ids are unique among the living

    def of(self, value: Any) -> Any:
        """The value with other parts; the value itself if they are all the same, or changed in place."""
        if id(value) not in self._known:
            self._known[id(value)] = (value, value)  # a list may hold itself
            self._known[id(value)] = (value, self._exchanged(value))
        return self._known[id(value)][1]

    def _exchanged(self, value: Any) -> Any:
        match kind_of(value):
            case Kind.LIST | Kind.DICT:
                return self._container(value)
            case Kind.TUPLE | Kind.RECORD:
                items = [self.of(item) for item in value]
                if all(new is old for new, old in zip(items, value, strict=True)):
                    return value
                return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
            case Kind.METHOD:
                module = self.of(value.__self__)
                return value if module is value.__self__ else types.MethodType(value.__func__, module)
            case _:
                return self._replace(value) if is_part(value) else value

    def _container(self, value: Any) -> Any:
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        new = [(key, item) for key, old in items if (item := self.of(old)) is not old]
        if new and id(value) in self._borrowed:
            value = copy.copy(value)
        for key, item in new:
            value[key] = item
        return value
