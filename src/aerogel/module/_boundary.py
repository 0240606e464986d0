"""The switch between the two ways in which JAX sees a module, and the functions that JAX calls to see one.

Off, a module is a node with its children below it. On, it is one node with the flat tuple of its leaves, cached in
the module, and one interned structure: JAX's C++ makes one Python call per module and direction, and what comes back
builds its attributes when they are read. `ag.jit` turns it on around a call and off inside the traced function.

Laws (tests/module/test_boundary.py):
1. The switch is the thread's own, and is what it was before once a function made by `crossing` or `inside` ends,
   however it ends.
2. The leaves, their order and their paths are the same on and off.
3. Two modules have one structure with the switch on exactly if they have one with it off.
"""

import threading
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

import jax

from ._containers import FrozenDict, FrozenList, FrozenTuple
from ._decide import form_of
from ._form import new, put
from ._holes import built, children_of
from ._late import Flat
from ._methods import BoundMethod
from ._paths import LeafKey


class _Switch(threading.local):
    on = False


_switch = _Switch()
_flats: WeakValueDictionary[Hashable, Flat] = WeakValueDictionary()
_lock = threading.Lock()


def crossing(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, for whose calls modules are seen flat.

    No context manager: entering and leaving are single stores, between which no signal can be handled, so that not
    even KeyboardInterrupt leaves the switch on.
    """
    switch = _switch  # a cell is read faster than a global, and this is paid at every call

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = switch.on
        switch.on = True
        try:
            return function(*args, **kwargs) if kwargs else function(*args)
        finally:
            switch.on = before

    return call


def inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, to be traced by a call that crosses: in it modules are seen as they are, its results again flat."""

    @wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        before = _switch.on
        _switch.on = False
        try:
            return function(*args, **kwargs)
        finally:
            _switch.on = before

    return traced


def is_crossing() -> bool:
    """Whether this thread sees modules flat."""
    return _switch.on


def flatten(node: Any) -> tuple[Any, Any]:
    """What JAX asks a module for: children and structure."""
    if _switch.on:
        try:
            return node._flat
        except AttributeError:
            return _first_crossing(node)
    form = form_of(node)
    return children_of(node, form), form


def flatten_with_keys(node: Any) -> tuple[Any, Any]:
    """The same, with the key of every child."""
    if _switch.on:
        leaves, flat = flatten(node)
        return tuple(zip(flat.keys, leaves, strict=True)), flat
    return _nested_with_keys(node)


def unflatten(structure: Any, children: Any) -> Any:
    """What JAX asks for a module from its parts."""
    if type(structure) is Flat:
        module = new(structure.cls)
        put(module, "_flat", (children, structure))
        return module
    return built(structure, children)


def register(cls: type) -> None:
    """Makes a class of modules known to JAX."""
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def _first_crossing(node: Any) -> tuple[Any, Any]:
    before = _switch.on
    _switch.on = False
    try:
        found, structure = jax.tree_util.tree_flatten_with_path(node)
    finally:
        _switch.on = before
    with _lock:
        flat = _flats.get(structure)
        if flat is None:
            flat = Flat(type(node), structure, tuple(LeafKey(path) for path, _ in found))
            _flats[structure] = flat
    pair = tuple(leaf for _, leaf in found), flat
    put(node, "_flat", pair)
    return pair


def _nested(node: Any) -> tuple[Any, Any]:
    form = form_of(node)
    return children_of(node, form), form


def _nested_with_keys(node: Any) -> tuple[Any, Any]:
    form = form_of(node)
    return tuple(zip(map(form.entry, form.slots), children_of(node, form), strict=True)), form


for _cls in (FrozenList, FrozenTuple, FrozenDict, BoundMethod):
    jax.tree_util.register_pytree_with_keys(_cls, _nested_with_keys, unflatten, _nested)
