"""Attributes that are not there yet: of modules that came out of a compiled function, and of places tied by a function.

Such a module holds the flat tuple of its leaves. The first read of any attribute builds all of them. For this the
class gets, once, a descriptor for every field: one that an instance's own value hides. Classes that no such instance
was made of stay as they are, and reading their attributes costs what it costs on any class (a read past a descriptor
was measured at 19 ns instead of 5).
"""

from collections.abc import Callable
from typing import Any

from ._form import MISSING, put


def is_lazy(node: Any) -> bool:
    """Whether the attributes were not built yet: then there is no form."""
    return not hasattr(node, "_form")


class Late:
    """Stands in a class for one field of its instances. It sets nothing, so that an instance's own value hides it."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: Any) -> None:
        self.name = name
        self.default = default

    def __get__(self, node: Any, owner: type | None = None) -> Any:
        if node is None:
            if self.default is MISSING:
                raise AttributeError(f"type object {owner.__name__!r} has no attribute {self.name!r}")  # type: ignore[union-attr]
            return self.default
        if is_lazy(node):
            build_attributes(node)
            return getattr(node, self.name)
        found = late_values(node).get(self.name)
        if found is None and self.default is not MISSING:
            return self.default
        if found is None:
            raise AttributeError(f"{type(node).__name__!r} object has no attribute {self.name!r}")
        via, source = found
        return via(source)


class Flat:
    """The structure of a whole module that crosses a boundary as one node: its treedef, interned.

    A module that comes back holds the pair of its leaves and this in `_flat`, and nothing else.
    """

    __slots__ = ("__weakref__", "cls", "structure")

    def __init__(self, cls: type, structure: Any) -> None:
        watch(cls)
        self.cls = cls
        self.structure = structure


def watch(cls: type) -> None:
    """Makes reads of absent attributes of `cls` come here."""
    for name in cls._fields_in_order:
        own = raw(cls, name)  # a default of the field, or what a class below was given
        if not isinstance(own, Late):
            setattr(cls, name, Late(name, own))


def raw(cls: type, name: str) -> Any:
    """What a class or a base of it has by that name, past descriptors and the metaclass; MISSING if nothing."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), MISSING)


def build_attributes(node: Any) -> None:
    """Gives a module that holds its leaves flat its attributes. Two threads may do so at once: both are equal."""
    (leaves,), flat = node._flat
    built = flat.structure.unflatten(leaves)
    late = late_values(built)
    for name in type(node)._fields_in_order:
        if name not in late:
            value = getattr(built, name, MISSING)
            if value is not MISSING:
                put(node, name, value)
    if late:
        put(node, "_late", late)
    put(node, "_form", built._form)


def late_values(node: Any) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """The attributes that are computed when they are read: the function and its argument."""
    return getattr(node, "_late", None) or {}


def put_late(node: Any, name: str, via: Callable[[Any], Any], source: Any) -> None:
    """Makes `node.name` mean `via(source)`, computed at every read: no second copy is kept."""
    watch(type(node))
    put(node, "_late", late_values(node) | {name: (via, source)})


def put_all_late(node: Any, late: dict[str, tuple[Callable[[Any], Any], Any]]) -> None:
    """Makes several attributes computed ones."""
    for name, (via, source) in late.items():
        put_late(node, name, via, source)
