"""Bound methods of modules as data: they hold the module, so its arrays are theirs."""

import types
from collections.abc import Callable
from typing import Any

import jax

from ._form import put
from ._kinds import KINDS, Kind, kind_of


class BoundMethod:
    """A method with its module, as a pytree. `model.method` itself stays a plain method of Python's.

    A module that is given a method of another module holds one of these, and a transformation that is given a method
    in its arguments makes one. It is called as the method is.
    """

    __slots__ = ("__func__", "__self__", "__weakref__", "_form", "_shadow")
    _fields_in_order = ("__self__", "__func__")

    __func__: Callable[..., Any]
    __self__: Any

    def __init__(self, function: Callable[..., Any], module: Any) -> None:
        put(self, "__func__", function)
        put(self, "__self__", module)
        put(self, "_form", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"bound methods do not change: {name!r} cannot be set")

    def __eq__(self, other: object) -> bool:
        if type(other) is not BoundMethod:
            return NotImplemented
        return self.__func__ == other.__func__ and bool(self.__self__ == other.__self__)

    def __hash__(self) -> int:
        return hash((self.__func__, self.__self__))

    def __reduce__(self) -> Any:
        return BoundMethod, (self.__func__, self.__self__)

    def __repr__(self) -> str:
        return f"{self.__self__!r}.{getattr(self.__func__, '__name__', repr(self.__func__))}"

    @property
    def __name__(self) -> str:
        """The method's name, as functions have it: JAX names compiled functions by it."""
        return getattr(self.__func__, "__name__", type(self.__func__).__name__)


KINDS[BoundMethod] = Kind.NODE


def is_method(value: Any) -> bool:
    """Whether it is a method of a module, as Python binds it."""
    return isinstance(value, types.MethodType) and kind_of(value.__self__) is Kind.NODE


def with_methods(tree: Any) -> Any:
    """The tree with each method of a module as a `BoundMethod`; the tree itself where there is none."""
    if not any(map(is_method, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(lambda leaf: BoundMethod(leaf.__func__, leaf.__self__) if is_method(leaf) else leaf, tree)
