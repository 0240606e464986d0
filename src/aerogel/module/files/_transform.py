"""A user's function between the arrays of a tree and those of a file: transposing, splitting off an axis, scaling."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..._errors import UsageError
from ._names import matching
from ._spec import Spec, spec_of

Transform = Mapping[str, Callable[[np.ndarray], Any]] | Callable[[str, np.ndarray], Any] | None


def has_transform(transform: Transform, name: str) -> bool:
    """Whether anything is done to the array of that name."""
    return transform is not None and (not isinstance(transform, Mapping) or matching(transform, name) is not None)


def transformed(transform: Transform, name: str, array: np.ndarray, promised: Spec) -> np.ndarray:
    """The array after the transform of its name; the same one if there is none.

    Raises:
        UsageError: it is not what the transform made of zeros, by which the rest was decided.
    """
    result = _applied(transform, name, array)
    if spec_of(result) != promised:
        wanted = f"a function that goes by dtype and shape: {promised} it was for zeros"
        raise UsageError(argument="transform", got=spec_of(result), wanted=wanted)
    return result


def _applied(transform: Transform, name: str, array: np.ndarray) -> np.ndarray:
    if transform is None:
        return array
    if not isinstance(transform, Mapping):
        return np.asarray(transform(name, array))
    function = matching(transform, name)
    return array if function is None else np.asarray(function(array))


def transformed_spec(transform: Transform, name: str, spec: Spec) -> Spec:
    """What a leaf is after its transform, which is asked with zeros that take no memory. Keys and numbers stay."""
    if transform is None or spec.kind != "array":
        return spec
    zeros = np.broadcast_to(np.zeros((), spec.encoding.dtype), spec.shape)
    result = spec_of(_applied(transform, name, zeros))
    if result is None:
        raise UsageError(argument="transform", got=transform, wanted="a function that returns an array of numbers")
    return result
