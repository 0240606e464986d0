"""One layer after the other."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import jax

from aerogel.module import Module


class Lambda(Module):
    """A function as a layer: called with the input alone.

    >>> import jax, aerogel as ag
    >>> ag.nn.Lambda(jax.nn.relu)
    Lambda(fn=relu)
    """

    fn: Callable[[Any], Any]

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> Any:
        """`fn(x)`; `key` is not used."""
        return self.fn(x)


class Sequential(Module):
    """Layers, and functions, each called with the result of the one before.

    A key that it is called with is split, and goes to the layers that take one.

    Args:
        layers: the layers, or one list or tuple of them.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> one, two = jax.random.split(jax.random.key(0))
    >>> model = ag.nn.Sequential(ag.nn.Linear(3, 8, key=one), jax.nn.relu, ag.nn.Linear(8, 2, key=two))
    >>> model(jnp.ones((5, 3))).shape, model[0].out_features, len(model[1:])
    ((5, 2), 8, 2)
    """

    layers: tuple[Callable[..., Any], ...]

    def __init__(self, *layers: Callable[..., Any] | Sequence[Callable[..., Any]]) -> None:
        is_one = len(layers) == 1 and isinstance(layers[0], Sequence) and not isinstance(layers[0], Module)
        self.layers = tuple(layers[0]) if is_one else layers  # type: ignore[arg-type, assignment]

    def __call__(self, x: Any, *, key: jax.Array | None = None) -> Any:
        """The result of the last layer."""
        keys = [None] * len(self.layers) if key is None else jax.random.split(key, max(len(self.layers), 1))
        for layer, one_key in zip(self.layers, keys, strict=False):
            x = called(layer, x, key=one_key)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, index: int) -> Callable[..., Any]: ...
    @overload
    def __getitem__(self, index: slice) -> "Sequential": ...
    def __getitem__(self, index: int | slice) -> Any:
        return Sequential(self.layers[index]) if isinstance(index, slice) else self.layers[index]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.layers)


def called(layer: Any, x: Any, *args: Any, key: jax.Array | None, **kwargs: Any) -> Any:
    """The result of a layer that is given the key if there is one, and if it takes one."""
    given = {"key": key} if key is not None and _takes(layer) else {}
    return layer(x, *args, **given, **kwargs)


def _takes(layer: Any) -> bool:
    """Whether a layer takes a `key`. A layer of another library cannot be hashed inside of `jit`, but its class can."""
    cls: Any = type(layer)
    if inspect.isfunction(layer):
        return takes_key(layer, True)
    return takes_key(cls.__call__, issubclass(cls, Module))


@functools.lru_cache(maxsize=1024)
def takes_key(function: Any, as_any: bool) -> bool:
    """Whether a function takes a `key`, by that name or, with `as_any`, by taking any.

    A function that does not say what it takes is not given one. That a class of JAX's (of `jax.nn.relu`, say) takes any
    tells of its wrapper alone.
    """
    if not inspect.isfunction(function):
        return False
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == "key" or (as_any and each.kind is each.VAR_KEYWORD) for each in parameters)
