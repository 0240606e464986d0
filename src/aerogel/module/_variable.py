"""Values that a module's methods update: statistics, counters, caches. The module stays immutable.

`stateful` (in `transform`) calls a function with every `Variable` of a model *bound*: reads and writes then go to a
store, which exists for that call. Outside of such a call a variable is a module with one leaf and can be read.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from ._array_like import ArrayLike
from ._display import show_array
from ._errors import StateError
from ._field import field
from ._form import put
from ._kinds import Kind, kind_of
from ._module import Module


class Store(Protocol):
    """What holds the variables' values during one call of a function."""

    names: tuple[str, ...]
    initial: tuple[Any, ...]

    def read(self, index: int) -> Any: ...
    def write(self, index: int, value: Any) -> None: ...


class _Stores(threading.local):
    def __init__(self) -> None:
        self.of_call: dict[int, Store] = {}


_stores = _Stores()


def open_stores() -> list[Store]:
    """The stores of the calls that this thread is in, the outermost first."""
    return list(_stores.of_call.values())


@contextmanager
def opened(call: int, store: Store) -> Generator[None]:
    """The variables that are bound to `call` are in `store` inside."""
    _stores.of_call[call] = store
    try:
        yield
    finally:
        del _stores.of_call[call]


def _strong(value: Any) -> Any:
    """Numbers as arrays of a type of their own: a counter that starts at 0 is not promoted by what is added."""
    return jnp.asarray(value, jnp.result_type(value)) if isinstance(value, bool | int | float | complex) else value


class Variable(Module, ArrayLike):
    """A value that methods of a module update: `self.count.set(self.count + 1)`.

    In the tree it is a leaf like any other, at the path `...count.value`: it is saved, mapped, sharded and compiled
    as parameters are. It is a constant for differentiation: `jax.grad` gives zeros for it. One variable in two places
    of a model is one variable.

    Attributes:
        value: the leaf. Inside a call of `stateful` this is the value before the call: methods use `get()`, or the
            variable itself, which reads as an array in arithmetic and in `jax.numpy`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> class Counter(ag.Module):
    ...     count: ag.Variable
    ...     def __call__(self, x):
    ...         self.count.set(self.count + 1)
    ...         return x / self.count
    >>> counter = Counter(ag.Variable(0))
    >>> out, counter = ag.stateful(Counter.__call__)(counter, 3.0)
    >>> out, counter = ag.stateful(Counter.__call__)(counter, 3.0)
    >>> float(out), int(counter.count.value)
    (1.5, 2)
    """

    _constant_fields: ClassVar = ("value",)

    value: Any = field(converter=_strong)

    def get(self) -> Any:
        """The value, which is a constant for differentiation."""
        return self.value

    def set(self, value: Any) -> None:
        """Gives the variable another value of its shape and dtype, inside a call of `stateful`.

        Raises:
            StateError: no call of `stateful` was given the model; or the value does not fit, or is not one value:
                under `vmap` it must be the same for all elements.
        """
        raise StateError(
            what="a variable can be updated only in a function that returns the updated model.",
            place=f"a Variable of {_shown(self.value)}",
            got=".set(...)",
            to_fix="call it as out, model = ag.stateful(f)(model, ...); to drop the updates: out, _ = ...",
        )


class Bound(ArrayLike):
    """A variable inside a call of `stateful`: a place in the call's store.

    As a node it holds the value, so that a transformation can see and slice it. The store is found by number: a place
    goes through the transformations of a function's body by its position in the tree alone.
    """

    __slots__ = ("call", "index", "value")
    _constant_fields: ClassVar = ("value",)

    call: int
    index: int
    value: Any

    def __init__(self, call: int, index: int, value: Any) -> None:
        put(self, "call", call)
        put(self, "index", index)
        put(self, "value", value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a variable is updated by `.set(value)`")

    def __repr__(self) -> str:
        return f"Variable(value={_shown(self.value)})"

    @property
    def store(self) -> Store:
        """Where the value is.

        Raises:
            StateError: the call is over.
        """
        store = _stores.of_call.get(self.call)
        if store is None:
            raise StateError(
                what="the call of `ag.stateful` that this variable belongs to is over.",
                place=f"a Variable of {_shown(self.value)}",
                to_fix="use the model that the call returned, and keep none from inside of it",
            )
        return store

    @property
    def seen(self) -> Any:
        """What a transformation sees: the value now, of the place itself; else what stands in its place."""
        store = _stores.of_call.get(self.call)
        is_whole = store is not None and self.value is store.initial[self.index]
        return store.read(self.index) if store is not None and is_whole else self.value

    def is_part(self, store: Store) -> bool:
        """Whether a transformation took a part of the value, or put something else in its place."""
        return getattr(self.value, "shape", None) != store.initial[self.index].shape

    def get(self) -> Any:
        """The value now: what was set last."""
        store = self.store
        return self.value if self.is_part(store) else store.read(self.index)

    def set(self, value: Any) -> None:
        """As `Variable.set`."""
        store = self.store
        name, now = store.names[self.index], store.initial[self.index]
        if self.is_part(store):
            raise StateError(
                what="a part of a variable cannot be updated: which part it is, only the loop or `vmap` knows.",
                place=name,
                got=_shown(self.value),
                wanted=_shown(now),
                to_fix="collect the updates inside of it: out, part = ag.stateful(f)(part, ...), and return both",
            )
        store.write(self.index, fitted(value, now, name))


def is_variable(value: Any) -> bool:
    """Whether a value is a variable, bound or not."""
    return isinstance(value, Variable | Bound)


def fitted(value: Any, like: Any, name: str) -> Any:
    """The value as an array of the type of `like`.

    Raises:
        StateError: its shape is another one, or its dtype is wider.
    """
    value = value.get() if isinstance(value, ArrayLike) else value
    is_number = kind_of(value) is Kind.ARRAY or isinstance(value, bool | int | float | complex | np.ndarray | list)
    array = jnp.asarray(value) if is_number else None
    if array is not None and array.shape == like.shape and _widens(array, like.dtype):
        return jax.lax.convert_element_type(array, like.dtype)
    raise StateError(
        what="a variable keeps its shape and dtype.",
        place=name,
        got=type(value).__name__ if array is None else show_array(array),
        wanted=show_array(like),
        to_fix=_fix(array, like),
    )


def _fix(array: Any, like: Any) -> str:
    if array is not None and array.shape == like.shape:
        return f"convert it: .set(value.astype({str(like.dtype)!r}))"
    return f"set an array of shape {like.shape}; for a part of it, .set(variable.get().at[index].set(part))"


def _widens(array: jax.Array, dtype: Any) -> bool:
    return array.dtype == dtype or jnp.result_type(array, jax.ShapeDtypeStruct((), dtype)) == dtype


def _shown(value: Any) -> str:
    return show_array(value) if hasattr(value, "dtype") and hasattr(value, "shape") else type(value).__name__


jax.tree_util.register_pytree_with_keys(
    Bound,
    lambda node: (((GetAttrKey("value"), node.seen),), (node.call, node.index)),
    lambda place, children: Bound(*place, *children),
    lambda node: ((node.seen,), (node.call, node.index)),
)
Variable.register(Bound)
