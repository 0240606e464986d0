"""Models as they are used, and as they are trained."""

from typing import TypeVar

from ._edit import edited
from ._steps import home, key_of_step, nodes_below

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
    places = (
        (*path, key)
        for path, node in nodes_below(tree)
        if hasattr(node, "inference") and (key := key_of_step(node, "inference", statics=True)) is not None
    )
    return edited(tree, {home(tree, path)[0]: value for path in places})
