"""Where a layer stands in the model that was called: for errors, which the layer raises."""

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jax.tree_util import GetAttrKey

from aerogel.module import Module
from aerogel.module._building import _paths_to
from aerogel.module._paths import Path, show_path


@dataclass(frozen=True)
class StandIn:
    """A layer that a method made of one that its module holds, in a variable `stand_in` while that layer is called.

    Attributes:
        layer: what is called.
        field: the attribute of the module that it was made of.
    """

    layer: Any
    field: str


def position_of(layer: Module) -> str:
    """`model.layers[0] (Linear)`: the path of a layer whose method runs, from the outermost module whose method runs.

    A layer does not know what holds it. The frames of the calls that led here do, and to look at them costs nothing
    where nothing goes wrong. A layer that a transformation took apart on the way is not the object that its owner
    holds: then the path begins there.
    """
    path: Path = ()
    inner: Any = layer
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner, steps = _owner_in(frame, inner)
        if steps:
            inner, path = owner, (*steps, *path)
        frame = frame.f_back
    name = type(layer).__name__
    return f"{show_path(path, 'model')} ({name})" if path else name


def _owner_in(frame: FrameType, inner: Any) -> tuple[Any, Path]:
    """The module whose method a frame is, and the path from there to `inner`; an empty one if it does not hold it."""
    known = frame.f_locals
    owner = known.get("self")
    if not isinstance(owner, Module) or owner is inner:
        return owner, ()
    stand_in = known.get("stand_in")
    if isinstance(stand_in, StandIn) and stand_in.layer is inner:
        return owner, (GetAttrKey(stand_in.field),)
    found = _paths_to(owner, inner)
    return owner, found[0] if found else ()
