"""Iterators of batches, and where they stand after each."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Positioned(NamedTuple):
    """A batch, and the position of its iterator behind it; None for iterators that have none."""

    batch: Any
    position: Any


def positioned(batches: Iterable[Any]) -> Iterator[Positioned]:
    """The batches with the positions that their iterator tells, as those of `grain` do by `get_state`."""
    source = iter(batches)
    get_state = getattr(source, "get_state", lambda: None)
    for batch in source:
        yield Positioned(batch, get_state())
