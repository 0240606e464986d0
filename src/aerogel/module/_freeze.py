"""What happens to a value on its way into a module: containers in it are replaced by frozen ones."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._containers import FrozenDict, FrozenList, FrozenOrderedDict, FrozenTuple, fill_container, sorted_keys
from ._errors import FieldError, StructureError
from ._foreign import has_structure, holds_data
from ._form import BUILDING, put
from ._kinds import KINDS, Kind, kind_of
from ._methods import BoundMethod
from ._values import check_partial, key_of

# Types that pass as they are; a look into this set is all that most values cost.
UNTOUCHED: set[type] = {cls for cls, kind in KINDS.items() if kind in (Kind.ATOM, Kind.ARRAY, Kind.NODE)}


def freeze(value: Any, place: str) -> Any:
    """The value as a module holds it: lists, dicts and sets frozen, also inside each other and inside tuples.

    Args:
        value: anything.
        place: the path where it will stand, for errors.

    Raises:
        StructureError: it is structure and cannot be hashed.
    """
    return _WAYS[kind_of(value)](value, place)


def _as_it_is(value: Any, _: str) -> Any:
    UNTOUCHED.add(type(value))
    return value


def _freeze_list(value: Any, place: str) -> Any:
    return _placed(FrozenList, _items(value, place), place)


def _freeze_dict(value: Any, place: str) -> Any:
    cls, keys = (FrozenOrderedDict, value) if _is_ordered(value) else (FrozenDict, sorted_keys(value))
    return _placed(cls, {key: freeze(value[key], f"{place}[{key!r}]") for key in keys}, place)


def _freeze_set(value: Any, place: str) -> Any:
    return frozenset(freeze(item, place) for item in value)


_ALIKE: tuple[set[Any], ...] = {Kind.ATOM}, {Kind.ARRAY}  # what most tuples hold: numbers only, arrays only


def _freeze_tuple(value: Any, place: str) -> Any:
    """A plain tuple if it is all data or all structure: JAX or `==` then knows what to do with it."""
    if set(map(KINDS.get, map(type, value))) in _ALIKE:
        return tuple(value)
    items = tuple(_items(value, place))
    if is_pure(items) or not any(map(is_data, items)):
        return items
    node = fill_container(FrozenTuple, items)
    put(node, "_form", None)
    return node


def _freeze_record(value: Any, place: str) -> Any:
    return type(value)._make(_items(value, place))


def _freeze_method(value: Any, place: str) -> Any:
    if kind_of(value.__self__) is not Kind.NODE:
        return _hashable(value, place)
    _check_finished(value, place)
    return BoundMethod(value.__func__, value.__self__)


def _freeze_foreign(value: Any, place: str) -> Any:
    check_partial(value, place)
    return value


def _hashable(value: Any, place: str) -> Any:
    key_of(value, place)
    return value


def _items(values: Any, place: str) -> list[Any]:
    items = list(values)
    for i, item in enumerate(items):
        if type(item) not in UNTOUCHED:  # not by `freeze`: two of Python's frames for each level of nesting are enough
            items[i] = _WAYS[kind_of(item)](item, f"{place}[{i}]")
    return items


_WAYS: dict[Kind, Callable[[Any, str], Any]] = {
    **dict.fromkeys((Kind.ARRAY, Kind.ATOM, Kind.NODE), _as_it_is),
    Kind.LIST: _freeze_list,
    Kind.DICT: _freeze_dict,
    Kind.SET: _freeze_set,
    Kind.TUPLE: _freeze_tuple,
    Kind.RECORD: _freeze_record,
    Kind.METHOD: _freeze_method,
    Kind.FOREIGN: _freeze_foreign,
    Kind.OTHER: _hashable,
}


def is_data(value: Any) -> bool:
    """Whether a frozen value is a leaf or a node of the tree, as opposed to structure.

    A module always is, so that `is_leaf` finds it; a container is if it holds a module or an array.
    """
    match kind_of(value):
        case Kind.ARRAY:
            return True
        case Kind.NODE if isinstance(value, FrozenDict):
            return any(map(is_data, value.values()))
        case Kind.NODE if isinstance(value, list | tuple):
            return any(map(is_data, value))
        case Kind.NODE:
            return True
        case Kind.TUPLE | Kind.RECORD:
            return any(map(is_data, value))
        case Kind.FOREIGN:
            return holds_data(value)
        case _:
            return False


def is_pure(value: Any) -> bool:
    """Whether a frozen tuple's items are data throughout, or nodes without leaves, so that it needs no form."""
    return all(_is_empty(item) or (is_data(item) and not has_structure(item)) for item in value)


def _is_empty(value: Any) -> bool:
    """Whether it is a node in which JAX sees no leaf, and nobody a None: `optax.EmptyState()`."""
    if kind_of(value) not in (Kind.TUPLE, Kind.RECORD, Kind.FOREIGN):
        return False
    return not jax.tree.leaves(value, is_leaf=lambda part: part is None)


def as_data(value: Any, place: str) -> Any:
    """The value with its numbers turned into arrays: what `field(dynamic=True)` asks for.

    Raises:
        StructureError: there is something in it that is no number, no array and no module.
    """
    match value:
        case bool() | int() | float() | complex():
            return jnp.asarray(value)
        case None:
            return None
        case dict():
            items = {key: as_data(item, f"{place}[{key!r}]") for key, item in value.items()}
            return OrderedDict(items) if _is_ordered(value) else items
        case tuple() if hasattr(value, "_fields"):
            return type(value)._make(as_data(item, place) for item in value)  # type: ignore[attr-defined]
        case list() | tuple():
            items = [as_data(item, f"{place}[{i}]") for i, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        case _:
            pass
    if kind_of(value) in (Kind.ARRAY, Kind.NODE, Kind.FOREIGN):
        return value
    raise StructureError(
        what="a field with `dynamic=True` holds data only.",
        place=place,
        got=value,
        wanted="a number, an array, a module, or a container of these",
        to_fix="drop `dynamic=True`, or give the value a field of its own",
    )


def _is_ordered(value: Any) -> bool:
    return isinstance(value, OrderedDict | FrozenOrderedDict)


def _placed(cls: type, items: Any, place: str) -> Any:
    node = fill_container(cls, items)
    put(node, "_form", None)
    put(node, "_where", place.partition(".")[2])
    return node


def _check_finished(method: Any, place: str) -> None:
    if getattr(method.__self__, "_form", None) is BUILDING:
        raise FieldError(
            what="a module cannot hold a method of itself: the method holds the module.",
            place=place,
            to_fix="call the method where it is needed, or keep its name",
        )
