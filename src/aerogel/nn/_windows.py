"""What convolutions and pooling say about their windows: one number for all axes of space, or one for each."""

import operator
from collections.abc import Sequence
from typing import Any

from aerogel._errors import UsageError

Each = int | Sequence[int]
Pads = str | int | Sequence[int] | Sequence[tuple[int, int]]


def each_axis(value: Any, num_spatial_dims: int, argument: str, least: int = 1) -> tuple[int, ...]:
    """One number for each axis of space.

    Raises:
        UsageError: there are more or fewer, or one is no whole number, or less than `least`.
    """
    numbers = tuple(map(_whole, _dealt(value, num_spatial_dims, argument)))
    if not all(number is not None and number >= least for number in numbers):
        raise UsageError(argument=argument, got=value, wanted=f"whole numbers, {least} or more")
    return numbers  # type: ignore[return-value]


def pads_of(padding: Any, num_spatial_dims: int) -> tuple[tuple[int, int], ...]:
    """Padding before and after each axis of space.

    Raises:
        UsageError: there are more or fewer, or something else than whole numbers and pairs of them.
    """
    found: list[tuple[int, int]] = []
    for each in _dealt(padding, num_spatial_dims, "padding"):
        pair = tuple(map(_whole, each if isinstance(each, Sequence) else (each, each)))
        if len(pair) != 2 or None in pair:
            raise UsageError(argument="padding", got=padding, wanted="whole numbers, or pairs of them")
        found.append(pair)  # type: ignore[arg-type]
    return tuple(found)


def _dealt(value: Any, num_spatial_dims: int, argument: str) -> Sequence[Any]:
    if not isinstance(value, Sequence):
        return (value,) * num_spatial_dims
    if len(value) != num_spatial_dims or isinstance(value, str):
        raise UsageError(argument=argument, got=value, wanted=f"one value, or one for each of {num_spatial_dims} axes")
    return value


def _whole(value: Any) -> int | None:
    """The number, if it is a whole one."""
    try:
        return operator.index(value)
    except TypeError:
        return None
