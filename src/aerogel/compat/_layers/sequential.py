"""One layer after the other, with state where a layer has it."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from aerogel.module import Module

from .state import State

ABSENT: Any = object()  # None is a state that a user may pass by mistake


class StatefulLayer(Module):
    """Base of layers that are called with a `State`, and return a pair of their result and the new state."""

    def is_stateful(self) -> bool:
        """Whether this one takes a state."""
        return True

    @abstractmethod
    def __call__(self, x: Any, state: State, *, key: jax.Array | None = None) -> Any:
        """The result, and the state."""


class Sequential(StatefulLayer):
    """Equinox's `Sequential`: layers in one sequence, each of which takes a `key`; those with state are given it.

    `aerogel.nn.Sequential` takes functions as they are, and has no state to hand on.
    """

    layers: tuple[Callable[..., Any], ...]

    def __init__(self, layers: Sequence[Callable[..., Any]]) -> None:
        self.layers = tuple(layers)

    def is_stateful(self) -> bool:
        """Whether one of its layers is."""
        return any(map(_takes_state, self.layers))

    def __call__(self, x: Any, state: State = ABSENT, *, key: jax.Array | None = None) -> Any:
        """The result of the last layer; with a state, a pair of that and the new state."""
        keys = [None] * len(self.layers) if key is None else jax.random.split(key, len(self.layers))
        for layer, one in zip(self.layers, keys, strict=True):
            if _takes_state(layer):
                x, state = layer(x, state=state, key=one)
            else:
                x = layer(x, key=one)
        return with_state(x, state)

    def __getitem__(self, index: int | slice) -> Any:
        return Sequential(self.layers[index]) if isinstance(index, slice) else self.layers[index]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def with_state(out: Any, state: Any) -> Any:
    """A result; a pair of it and the state, if there is one."""
    return out if state is ABSENT else (out, state)


def _takes_state(layer: Any) -> bool:
    return isinstance(layer, StatefulLayer) and layer.is_stateful()
