"""Models as they are used, and as they are trained."""

from collections.abc import Iterator
from typing import Any, TypeVar

from ._edit import edited
from ._paths import Path
from ._steps import home, is_node, key_of_step, part, parts_below, static_keys

T = TypeVar("T")


def inference(tree: T) -> T:
    """The tree with True in every attribute that is called `inference`: dropout off, batch statistics as they are.

    Arrays are shared, and the tree that it was made of stays what it was.

    >>> import aerogel as ag
    >>> model = [ag.nn.Dropout(0.1), ag.nn.BatchNorm(2)]
    >>> [layer.inference for layer in ag.inference(model)], [layer.inference for layer in model]
    ([True, True], [False, False])
    """
    return with_inference(tree, True)


def training(tree: T) -> T:
    """The tree with False in every attribute that is called `inference`: what undoes `inference`.

    >>> import aerogel as ag
    >>> ag.training(ag.inference(ag.nn.Dropout(0.1))).inference
    False
    """
    return with_inference(tree, False)


def with_inference(tree: T, value: bool) -> T:
    """The tree with `value` in every attribute that is called `inference`."""
    return edited(tree, {home(tree, path)[0]: value for path in _places(tree, ())})


def _places(node: Any, path: Path) -> Iterator[Path]:
    """The paths of all attributes of that name, in structure too: a dropout layer holds no data."""
    key = key_of_step(node, "inference", statics=True) if hasattr(node, "inference") else None
    if key is not None:
        yield (*path, key)
    for below in (*(key for key, _ in parts_below(node)), *static_keys(node)):
        value = part(node, below)
        if (key is None or below != key) and is_node(value):
            yield from _places(value, (*path, below))
