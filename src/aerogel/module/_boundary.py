"""The two ways in which JAX sees a module, and the functions that it calls to see one.

Everywhere but at the boundary of a compiled function a module is a node with its children below it. The C++ code that
answers calls of compiled functions flattens by a registry of its own, which exists so that it can take apart what is
whole for everybody else. There a module is one node: the flat tuple of its leaves, cached in the module, and one
interned structure. So a module costs one call per direction, however deep it is, and what comes back builds its
attributes when they are read. There is no state: threads, exceptions and nested calls have nothing to disturb, and
`jax.jit` takes modules at the price at which `ag.jit` does.

Laws (tests/module/test_boundary.py):
1. The leaves and their order are the same both ways.
2. Two modules have one structure in the dispatch registry exactly if they have one everywhere else.
"""

import threading
from collections.abc import Hashable
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

import jax

from .._jax import register_node
from ._containers import FrozenDict, FrozenList, FrozenOrderedDict, FrozenTuple
from ._decide import as_it_stands, form_of
from ._form import BUILDING, new, put
from ._holes import built, children_of
from ._late import Flat
from ._methods import BoundMethod

_flats: WeakValueDictionary[Hashable, Flat] = WeakValueDictionary()
_lock = threading.Lock()


class FirstCrossing:
    """Makes `module._flat` when it is first asked for. It sets nothing, so that the value hides it from then on."""

    __slots__ = ()

    def __get__(self, node: Any, owner: type | None = None) -> Any:
        leaves, structure = jax.tree.flatten(node)
        with _lock:
            flat = _flats.get(structure)
            if flat is None:
                flat = _flats[structure] = Flat(type(node), structure)
        pair = (tuple(leaves),), flat
        if node._form is not BUILDING:
            put(node, "_flat", pair)
        return pair


# In C: this runs at every call of a compiled function.
flatten_whole = attrgetter("_flat")


def unflatten_whole(flat: Any, children: Any, new: Any = new, put: Any = put) -> Any:
    """A module that holds its leaves flat, from `flatten_whole`'s structure."""
    module = new(flat.cls)
    put(module, "_flat", (children, flat))
    return module


def flatten(node: Any) -> tuple[Any, Any]:
    """Children and structure."""
    form = form_of(node)
    if form is BUILDING:
        return flatten(as_it_stands(node))
    return children_of(node, form), form


def flatten_with_keys(node: Any) -> tuple[Any, Any]:
    """The same, with the key of every child."""
    form = form_of(node)
    if form is BUILDING:
        return flatten_with_keys(as_it_stands(node))
    return tuple(zip(map(form.told, form.slots), children_of(node, form), strict=True)), form


def register(cls: type) -> None:
    """Makes a class of modules known to JAX."""
    register_node(cls, flatten, built, flatten_with_keys, flatten_whole, unflatten_whole)


for _cls in (FrozenList, FrozenTuple, FrozenDict, FrozenOrderedDict, BoundMethod):
    register_node(_cls, flatten, built, flatten_with_keys, flatten, built)
