"""Writing one file from several processes, each the parts of arrays that it has."""

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather

from ._errors import SaveError
from ._replace import replacing, temporary_name
from ._safetensors import Stored, write_box

T = TypeVar("T")
Part = tuple[Stored, Sequence[slice], np.ndarray]  # of which array, which part of it, and what stands there


def is_divided(leaf: Any) -> bool:
    """Whether an array is spread over devices of several processes."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def write_together(path: str | os.PathLike[str], start: bytes, nbytes: int, parts: Iterable[Part]) -> None:
    """A file, which takes the place of `path` when all processes have written their parts, and not if one failed.

    All of them call this, with one `path`, which leads to one file. They wait for each other.

    Args:
        path: the file.
        start: its header.
        nbytes: of the arrays behind it.
        parts: what this process has, one after the other.

    Raises:
        OSError: this process could not write; or what else it failed with.
        SaveError: another one could not.
    """
    is_first = jax.process_index() == 0
    token = bytes(broadcast_one_to_all(np.frombuffer(secrets.token_bytes(8), np.uint8))).hex()

    with ExitStack() as stack:

        def begin() -> None:
            if is_first:
                file = stack.enter_context(replacing(path, token))
                file.write(start)
                file.truncate(len(start) + nbytes)
                file.flush()

        def write() -> None:
            with open(temporary_name(path, token), "r+b") as file:
                for stored, box, data in parts:
                    write_box(file, len(start), stored, box, data)
                file.flush()
                os.fsync(file.fileno())

        for step in (begin, write, stack.close):
            _in_all(step, path)


def _in_all(step: Callable[[], None], path: str | os.PathLike[str]) -> None:
    """Takes a step, and waits until all processes have; if one could not, it ends in all of them."""
    is_done = False
    try:
        step()
        is_done = True
    finally:  # whatever it failed with: the others wait for this process, and would for ever
        done = process_allgather(np.array(is_done)).reshape(-1)
    if not done.all():
        raise SaveError(
            what=f"process {int(np.argmin(done))} could not write its part.",
            place=os.fsdecode(path),
            to_fix="look at the error in that process; all processes must reach the same file system",
        )
