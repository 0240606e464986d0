"""State that is handed from call to call, by Equinox's names. Aerogel's own way is `ag.Variable` and `ag.stateful`."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

import jax
import jax.numpy as jnp

from aerogel.module import Module, field
from aerogel.module._containers import FrozenDict, FrozenList, FrozenOrderedDict, FrozenTuple
from aerogel.module._display import show
from aerogel.module._paths import show_path

from .._errors import CompatError
from .._tree import tree_equal

V = TypeVar("V")


class _Gone(Module):
    """Stands for the first value in an index whose values are in a `State`."""


class StateIndex(Module, Generic[V]):
    """Where a `State` keeps a value: a layer holds an index, and the value is what the `State` says.

    Attributes:
        marker: the path in the model that `make_with_state` made.
        init: the first value; its numbers become arrays.
    """

    marker: Any = field(static=True)
    init: V | _Gone = field(dynamic=True)

    def __init__(self, init: V | _Gone, *, marker: Any = None) -> None:
        self.init = init
        self.marker = object() if marker is None else marker


def _is_index(node: Any) -> bool:
    return isinstance(node, StateIndex)


def _indices(tree: Any) -> list[StateIndex[Any]]:
    return [node for node in jax.tree.leaves(tree, is_leaf=_is_index) if _is_index(node)]


@jax.tree_util.register_pytree_with_keys_class
class State:
    """The values of all indices in a model: a pytree that layers take, and give back with new values.

    Each method that gives a new one ends the old one, so that no update is lost by using that again.

    Args:
        model: a model whose indices hold their first values. `make_with_state` is the way to make both.
    """

    def __init__(self, model: Any) -> None:
        self._values: dict[Any, Any] | None = {}
        for index in _indices(model):
            if isinstance(index.init, _Gone):
                _refuse("the model's first values are in another State already.", "call make_with_state(Model)(...)")
            self._values[index.marker] = _stored(index.init)

    def get(self, item: StateIndex[V]) -> V:
        """The value of an index."""
        return self._present()[self._known(item).marker]

    def set(self, item: StateIndex[V], value: V) -> "State":
        """The state with another value at an index, of the same structure, shapes and dtypes; ends this one.

        Raises:
            CompatError: it has others, or this state has ended.
        """
        marker, values = self._known(item).marker, self._present()
        value = _stored(value)
        old, new = jax.eval_shape(lambda: (values[marker], value))
        if tree_equal(old, new) is not True:
            raise CompatError(
                what="a value keeps its structure, shapes and dtypes.",
                place=f"State.set, {marker}",
                got=show(new),
                wanted=show(old),
                to_fix="convert the new value; the first one in StateIndex decides",
            )
        return self._ended({**values, marker: value})

    def substate(self, pytree: Any) -> "State":
        """The values of the indices in a part of the model; this state goes on."""
        values = self._present()
        return _of({index.marker: values[index.marker] for index in _indices(pytree)})

    def update(self, substate: "State") -> "State":
        """The state with the values of a part of it; ends this one.

        Raises:
            CompatError: the other holds an index that this does not, or this state has ended.
        """
        values, new = self._present(), substate._present()
        if new.keys() - values.keys():
            _refuse("the other state is no part of this one.", "pass what `substate` of this state gave")
        return self._ended({**values, **new})

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        values = self._present()
        return [(jax.tree_util.DictKey(key), value) for key, value in values.items()], tuple(values)

    @classmethod
    def tree_unflatten(cls, keys: Any, values: Any) -> "State":
        return _of(dict(zip(keys, values, strict=True)))

    def __repr__(self) -> str:
        return "State(~old~)" if self._values is None else f"State({show(self._values)})"

    def _known(self, item: Any) -> Any:
        if not _is_index(item) or item.marker not in self._present():
            _refuse("values are asked for by a StateIndex of the model.", "pass the index that a layer holds")
        return item

    def _present(self) -> dict[Any, Any]:
        if self._values is None:
            _refuse(
                "an old state was used again: a layer gave back a newer one.",
                "x, state = layer(x, state); to keep the old one on purpose: jax.tree.map(lambda x: x, state) before",
            )
        return self._values

    def _ended(self, values: dict[Any, Any]) -> "State":
        self._values = None
        return _of(values)


def _stored(value: Any) -> Any:
    """A value with Python's own containers, which a module freezes, and with arrays.

    The type of such an array gives way to no other, so that a value has one type in all states.
    """
    if jax.tree_util.all_leaves([value]):
        return jnp.asarray(value, jnp.result_type(value))
    new = jax.tree.map(_stored, value, is_leaf=lambda node: node is not value)
    return _PYTHONS[type(new)](new) if type(new) in _PYTHONS else new


_PYTHONS: dict[type, type] = {
    FrozenList: list,
    FrozenTuple: tuple,
    FrozenDict: dict,
    FrozenOrderedDict: OrderedDict,
}


def _of(values: dict[Any, Any]) -> State:
    made = object.__new__(State)
    made._values = values
    return made


def _refuse(what: str, to_fix: str) -> NoReturn:
    raise CompatError(what=what, place="State", to_fix=to_fix)


def delete_init_state(model: Any) -> Any:
    """The model without the first values of its indices, which are in a `State`."""
    return jax.tree.map(
        lambda node: StateIndex(_Gone(), marker=node.marker) if _is_index(node) else node, model, is_leaf=_is_index
    )


def make_with_state(make_model: Callable[..., Any]) -> Callable[..., tuple[Any, State]]:
    """A function that returns a model, and the state of its layers apart from it.

    Args:
        make_model: returns the model: its class.
    """

    def make(*args: Any, **kwargs: Any) -> tuple[Any, State]:
        model = make_model(*args, **kwargs)

        def named(path: Any, node: Any) -> Any:
            is_index = _is_index(node)
            return StateIndex(node.init, marker=show_path(path, type(model).__name__)) if is_index else node

        model = jax.tree_util.tree_map_with_path(named, model, is_leaf=_is_index)
        return delete_init_state(model), State(model)

    return make
