"""Which arguments of a compiled function are donated, and functions for which this depends on what they return."""

import inspect
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax

from aerogel import _jax

from ._split import joined

_jax.exclude_from_tracebacks(__file__)

DONATE = ("none", "all", "state")
MOST_POSITIONS = 256  # of a function that takes any number of arguments
State = tuple[tuple[int, ...], tuple[str, ...]]  # positions and names of arguments


def all_arguments(function: Callable[..., Any], skip: int, static: State) -> State:
    """All arguments but the first `skip` and those that are static."""
    signature = _jax.signature(function)
    if signature is None:
        return tuple(i for i in range(skip, MOST_POSITIONS) if i not in static[0]), ()
    found = list(signature.parameters.values())
    by_position = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = MOST_POSITIONS if any(p.kind is p.VAR_POSITIONAL for p in found) else len(by_position)
    numbers = tuple(i for i in range(skip, most) if i not in static[0])
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return numbers, tuple(p.name for p in found[skip:] if p.kind in by_name and p.name not in static[1])


def arguments_that_return(args: Any, kwargs: Any, out: Any, without: State) -> State:
    """The arguments that are a tree and come back in the result: as a part of it of the same structure and types.

    A lone array is no such argument: that a loss has the type of a learning rate means nothing.
    """
    wanted: dict[Hashable, list[int | str]] = {}
    candidates = [(i, x) for i, x in enumerate(args) if i not in without[0]]
    for place, value in [*candidates, *((k, x) for k, x in kwargs.items() if k not in without[1])]:
        signature = types_of(value)
        if signature is not None:
            wanted.setdefault(signature, []).append(place)
    found: set[int | str] = set()
    for part in _parts(out, lambda node: bool(wanted.get(types_of(node)))):
        places = wanted.get(types_of(part))
        if places:
            found.add(places.pop(0))
    return tuple(sorted(p for p in found if isinstance(p, int))), tuple(sorted(p for p in found if isinstance(p, str)))


def types_of(tree: Any) -> Hashable:
    """Structure and types; None for what holds no array."""
    leaves, structure = jax.tree.flatten(joined(tree))
    if not leaves:
        return None
    return structure, tuple((getattr(x, "shape", ()), str(getattr(x, "dtype", type(x)))) for x in leaves)


def _parts(tree: Any, is_found: Callable[[Any], bool]) -> Iterator[Any]:
    """The nodes of a tree, no leaves, from the root down, not below one that is found."""
    if jax.tree_util.all_leaves([tree]):
        return
    yield tree
    if not is_found(tree):
        for child in jax.tree.leaves(tree, is_leaf=lambda node: node is not tree):
            yield from _parts(child, is_found)


class OtherState(BaseException):
    """Not an error: a function turned out, while it was traced, to have another state than at its first call."""


class StateCalls:
    """A compiled function that donates its state, found when it is first traced.

    Most functions have one state. Where a call of other types turns out to have another one, which only tracing can
    tell, the types of the arguments are looked at before every call from then on.
    """

    def __init__(self, plain: Any, make: Callable[[State], Any], without: State) -> None:
        self.plain = plain
        self._make = make
        self._without = without
        self._state: State | None = None
        self._current: Any = None
        self._has_many = False
        self._by_types: dict[Hashable, State] = {}
        self._by_state: dict[State, Any] = {}

    def check(self, args: Any, kwargs: Any, out: Any) -> None:
        """Is called whenever the function was traced, with what it got and returned.

        Raises:
            OtherState: what is being traced donates something else than this.
        """
        if self._state is None or self._has_many:
            return
        if arguments_that_return(args, kwargs, out, self._without) != self._state:
            self._has_many = True
            raise OtherState

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(lambda compiled: compiled, args, kwargs)

    def cache_miss(self, *args: Any, **kwargs: Any) -> Any:
        """As JAX's own (see `_jax.cache_miss`): what C++ code may answer from then on donates what this call does."""
        return self._called(_jax.cache_miss, args, kwargs)

    def _called(self, way: Callable[[Any], Any], args: Any, kwargs: Any) -> Any:
        if self._current is None or self._has_many:
            return way(self.chosen(args, kwargs))(*args, **kwargs)
        try:
            return way(self._current)(*args, **kwargs)
        except OtherState:
            pass
        return way(self.chosen(args, kwargs))(*args, **kwargs)

    def chosen(self, args: Any, kwargs: Any) -> Any:
        """The compiled function for these arguments."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        # What is static has no type that matters here, and is no larger than the set of all that was traced.
        key = structure, tuple(_type_of(x) for x in leaves)
        state = self._by_types.get(key)
        if state is None:
            try:
                out = self.plain.eval_shape(*args, **kwargs)
            except OtherState:
                out = self.plain.eval_shape(*args, **kwargs)
            state = self._by_types[key] = arguments_that_return(args, kwargs, joined(out), self._without)
        if state not in self._by_state:
            self._by_state[state] = self._make(state)
        if self._state is None:
            self._state, self._current = state, self._by_state[state]
        elif self._state != state:
            self._has_many = True
        return self._by_state[state]

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.chosen(args, kwargs).lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self.chosen(args, kwargs).trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        for compiled in (self.plain, *self._by_state.values()):
            compiled.clear_cache()


def _type_of(leaf: Any) -> Hashable:
    dtype = getattr(leaf, "dtype", None)
    return type(leaf) if dtype is None else (leaf.shape, dtype, getattr(leaf, "weak_type", False))
