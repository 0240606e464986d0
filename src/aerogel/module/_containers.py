"""Lists, tuples and dicts as they stand in modules: they compare and read as such, and do not change."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from ._errors import FrozenError
from ._form import MISSING, Form, named_by_attribute, put
from ._kinds import KINDS, Kind
from ._paths import ItemKey

HOLE: Any = type("Hole", (), {"__repr__": lambda _: "<tied>", "__slots__": ()})()


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        where = getattr(self, "_where", "")
        copy = f"make a changed copy: new = ag.at(model).{where}.set(value); for a part, in an `__init__`: "
        raise FrozenError(
            place=f"model.{where}" if where else f"a {type(self).__mro__[-2].__name__} in a module",
            action=f"{name}(...)",
            edit=f".{where}" if where else "...",
            to_fix=f"{copy}self.part.{where} = value" if where else None,
        )

    refuse.__name__ = name
    return refuse


class FrozenList(list):
    """A list that stands in a module. `type(items)(...)` makes a list of Python's, as `+` and `copy` do."""

    __slots__ = ("__weakref__", "_form", "_shadow", "_where")

    def __new__(cls, *args: Any) -> Any:
        return list(*args)

    def __copy__(self) -> "FrozenList":
        return self


class FrozenTuple(tuple):
    """A tuple that stands in a module and holds structure beside data, or a tied place."""

    # No __slots__: CPython allows none on subclasses of tuple.

    def __new__(cls, *args: Any) -> Any:
        return tuple(*args)


class FrozenDict(dict):
    """A dict that stands in a module. Its children are in the order of the keys where these have one."""

    __slots__ = ("__weakref__", "_form", "_shadow", "_where")

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return dict(*args, **kwargs)

    def __copy__(self) -> "FrozenDict":
        return self


class FrozenOrderedDict(FrozenDict):
    """An `OrderedDict` that stands in a module: its order is structure."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return OrderedDict(*args, **kwargs)


def fill_container(cls: type, items: Any) -> Any:
    """A new container of a frozen class."""
    if cls is FrozenList:
        node: Any = list.__new__(cls)
        list.extend(node, items)
    elif issubclass(cls, FrozenDict):
        node = dict.__new__(cls)
        dict.update(node, items)
    else:
        node = tuple.__new__(cls, items)
    return node


def with_form(cls: type, items: Any, form: Form) -> Any:
    """A new container of a frozen class, of a form that is known."""
    node = fill_container(cls, items)
    put(node, "_form", form)
    return node


class SequenceForm(Form):
    """The form of a list or tuple.

    Its `cls` is `FrozenList`, or what the tuple is when it is whole: `tuple` or a named one. A tuple that holds
    nothing but data is left to JAX: it is made as what it is, and so is a named one, which only its holder divides.
    """

    __slots__ = ()

    def read(self, node: Any) -> tuple[Any, ...]:
        return tuple(node) if len(self.slots) == len(node) else tuple(node[i] for i in self.slots)

    def get(self, node: Any, slot: Any) -> Any:
        return node[slot] if 0 <= slot < len(node) else MISSING

    def make(self, values: dict[Any, Any]) -> Any:
        items = [HOLE] * (len(self.slots) + len(self.statics) + len(self.holes))
        for slot, value in (*values.items(), *self.statics):
            items[slot] = value
        if self.cls is FrozenList:
            return with_form(FrozenList, items, self)
        if self.cls is not tuple and not self.holes:
            return self.cls._make(items)
        needs_form = self.statics or self.holes or self.foreign
        return with_form(FrozenTuple, items, self) if needs_form else tuple(items)

    def entry(self, slot: Any) -> Any:
        names = getattr(self.cls, "_fields", None)
        return SequenceKey(slot) if names is None else GetAttrKey(names[slot])

    def told(self, slot: Any) -> Any:
        has_gap = self.slots[-1:] != (len(self.slots) - 1,)
        return ItemKey(slot) if has_gap and not hasattr(self.cls, "_fields") else self.entry(slot)

    def order(self, slots: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(sorted(slots))


class MappingForm(Form):
    """The form of a dict."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Keys are structure too, as in a dict of Python's."""
        keys = f"keys {', '.join(map(repr, self.order((*self.slots, *dict(self.statics), *self.holes))))}"
        return f"{keys}, {super().__repr__()}" if self.statics or self.ties or self.frozen else keys

    def read(self, node: Any) -> tuple[Any, ...]:
        return tuple(node[key] for key in self.slots)

    def get(self, node: Any, slot: Any) -> Any:
        return node.get(slot, MISSING)

    def make(self, values: dict[Any, Any]) -> Any:
        known = dict(self.statics) | values
        order = self.order((*self.slots, *dict(self.statics), *self.holes))
        return with_form(self.cls, {key: known.get(key, HOLE) for key in order}, self)

    def entry(self, slot: Any) -> Any:
        return DictKey(slot)

    def order(self, slots: Iterable[Any]) -> tuple[Any, ...]:
        if not self.ordered:
            return sorted_keys(slots)
        wanted = set(slots)
        return tuple(key for key in self.ordered if key in wanted)


def sorted_keys(keys: Iterable[Any]) -> tuple[Any, ...]:
    """Keys in the order in which JAX flattens a dict; as they come if they have none."""
    keys = tuple(keys)
    try:
        return tuple(sorted(keys))
    except TypeError:
        return keys


for _cls, _names in (
    (
        FrozenList,
        "append extend insert pop remove clear sort reverse __setitem__ __delitem__ __iadd__ __imul__",
    ),
    (FrozenDict, "clear pop popitem setdefault update __setitem__ __delitem__ __ior__"),
):
    for _name in ("__init__", *_names.split()):
        setattr(_cls, _name, _refusing(_name))
KINDS.update(dict.fromkeys((FrozenList, FrozenTuple, FrozenDict, FrozenOrderedDict), Kind.NODE))
named_by_attribute |= {FrozenList, FrozenDict, FrozenOrderedDict}
