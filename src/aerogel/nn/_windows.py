"""What convolutions and pooling say about their windows: one number for all axes of space, or one for each."""

from collections.abc import Sequence
from typing import Any

from aerogel._errors import UsageError

Each = int | Sequence[int]
Pads = str | int | Sequence[int] | Sequence[tuple[int, int]]


def each_axis(value: Any, num_spatial_dims: int, argument: str) -> tuple[Any, ...]:
    """One value for each axis of space.

    Raises:
        UsageError: there are more or fewer.
    """
    if not isinstance(value, Sequence):
        return (value,) * num_spatial_dims
    if len(value) != num_spatial_dims:
        raise UsageError(argument=argument, got=value, wanted=f"one value, or one for each of {num_spatial_dims} axes")
    return tuple(value)


def pads_of(padding: Any, num_spatial_dims: int) -> tuple[tuple[int, int], ...]:
    """Padding before and after each axis of space.

    Raises:
        UsageError: there are more or fewer.
    """
    pairs = each_axis(padding, num_spatial_dims, "padding")
    return tuple((each, each) if isinstance(each, int) else (each[0], each[1]) for each in pairs)
