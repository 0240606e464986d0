"""Structure is compared by value: the key of a static value, hashable and equal exactly for equal values."""

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np

from ._errors import StructureError
from ._kinds import Kind, kind_of


def key_of(value: Any, place: str) -> Hashable:
    """Equal for two values exactly if these can stand for each other in a compiled program.

    `1`, `1.0` and `True` are three values, `0.0` and `-0.0` two, nan is one. Sequences, dicts, sets, NumPy arrays and
    `functools.partial`s go by their contents; functions, classes and the rest by their own `==` and `hash`.

    Args:
        value: any value that is not data.
        place: where it stands, for the error.

    Raises:
        StructureError: it holds an array of JAX's, or it cannot be hashed.
    """
    cls = type(value)
    if cls is float or cls is complex:
        return cls, repr(value)  # tells -0.0 from 0.0, and nan is nan
    if isinstance(value, np.ndarray | np.generic):
        return _array_key(value, place)
    return _KEYS.get(kind_of(value), _other_key)(value, place)


def refuse_array(
    value: Any, place: str, to_fix: str = "drop `static=True`, or keep a constant: np.asarray(value)"
) -> StructureError:
    """The error for data in a place of structure."""
    return StructureError(
        what="an array of JAX's cannot be part of the structure: it would be compared by value at every call.",
        place=place,
        got=value,
        wanted="a hashable value",
        to_fix=to_fix,
    )


def check_partial(value: Any, place: str) -> None:
    """Raises where a module cannot hold another library's node, whose leaves are looked at later.

    Raises:
        StructureError: it is a partial function of a module with arrays.
    """
    if isinstance(value, functools.partial):
        _check_function(value, place)


def _check_function(partial: "functools.partial[Any]", place: str) -> None:
    """Refuses a partial function of a module that holds arrays, or of a method of one: nobody would see these."""
    module = getattr(partial.func, "__self__", partial.func)
    held = _arrays_in(module) if kind_of(module) is Kind.NODE else []
    if held:
        name = f"{type(module).__name__}.{getattr(partial.func, '__name__', '__call__')}"
        raise refuse_array(
            held[0], place, f"jax.tree_util.Partial({name}, module, ...): the arguments of that are data"
        )


def _arrays_in(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def _atom_key(value: Any, _: str) -> Hashable:
    return type(value), value


def _sequence_key(value: Any, place: str) -> Hashable:
    return type(value), tuple(key_of(item, f"{place}[{i}]") for i, item in enumerate(value))


def _set_key(value: Any, place: str) -> Hashable:
    return frozenset, frozenset(key_of(item, place) for item in value)


def _mapping_key(value: Mapping[Any, Any], place: str) -> Hashable:
    return type(value), frozenset((key_of(k, place), key_of(v, f"{place}[{k!r}]")) for k, v in value.items())


def _array_key(value: np.ndarray | np.generic, place: str) -> Hashable:
    if value.dtype.hasobject:
        return type(value), value.shape, tuple(key_of(item, place) for item in value.reshape(-1).tolist())
    return type(value), value.dtype, value.shape, value.tobytes()


def _node_key(value: Any, place: str) -> Hashable:
    leaves, structure = jax.tree.flatten(value)
    return type(value), structure, tuple(key_of(leaf, place) for leaf in leaves)


def _other_key(value: Any, place: str) -> Hashable:
    if isinstance(value, functools.partial):
        _check_function(value, place)
        held = _arrays_in((value.args, value.keywords))
        if held:
            raise refuse_array(
                held[0], place, "jax.tree_util.Partial in place of functools.partial: its arguments are data"
            )
        return type(value), key_of(value.func, place), key_of(value.args, place), key_of(value.keywords, place)
    if isinstance(value, slice):
        return slice, key_of((value.start, value.stop, value.step), place)
    try:
        hash(value)
    except TypeError:
        raise StructureError(
            what="a value that is not an array is structure, and structure must be hashable.",
            place=place,
            got=value,
            wanted="a hashable value",
            to_fix="make its class a frozen dataclass or a Module",
        ) from None
    return type(value), value


def _no_key(value: Any, place: str) -> Hashable:
    raise refuse_array(value, place)


_KEYS: dict[Kind, Callable[[Any, str], Hashable]] = {
    Kind.ATOM: _atom_key,
    **dict.fromkeys((Kind.TUPLE, Kind.RECORD, Kind.LIST), _sequence_key),
    Kind.DICT: _mapping_key,
    Kind.SET: _set_key,
    **dict.fromkeys((Kind.NODE, Kind.FOREIGN), _node_key),
    Kind.ARRAY: _no_key,
}
