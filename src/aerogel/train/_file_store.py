"""Checkpoints as files: one safetensors file each, written by `ag.save`."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aerogel.module import load, save
from aerogel.module.files._together import is_divided

NAME = re.compile(r"step-(\d{10,})\.safetensors")
POSITION = "position"


class FileStore:
    """Files `step-0000001200.safetensors` in a folder."""

    def __init__(self, folder: str, keep: int) -> None:
        self._folder = Path(folder)
        self._keep = keep

    def steps(self) -> tuple[int, ...]:
        """The steps of the files that are there, in their order."""
        found = (NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return tuple(sorted(int(match[1]) for match in found if match))

    def write(self, step: int, state: Any, position: str) -> None:
        """Writes one, then deletes those that are too many.

        A state of several processes is written by all that have a part of it; if each has all of it, by the first.
        """
        leaves = jax.tree.leaves(state)
        is_everywhere = any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in leaves)
        is_first = jax.process_index() == 0
        if is_everywhere and not is_first and not any(map(is_divided, leaves)):
            return
        if is_first and (is_everywhere or jax.process_count() == 1):
            for left in self._folder.glob(".aerogel-*.tmp"):  # of a process that was killed while it wrote
                left.unlink(missing_ok=True)
        save(self._path(step), {"state": state, POSITION: np.frombuffer(position.encode(), np.uint8)})
        for old in self.steps()[: -self._keep]:
            self._path(old).unlink(missing_ok=True)  # another process deletes them, too

    def read(self, step: int, like: Any) -> tuple[Any, str]:
        """A state and its position."""
        place = f"[{POSITION!r}]"
        path = self._path(step)
        found = load(path, rename=lambda name: name if name == place else None)[place]
        state = load(path, {"state": like}, rename=lambda name: None if name == place else name)["state"]
        return state, found.tobytes().decode()

    def close(self) -> None:
        """Nothing: all is written."""

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:010d}.safetensors"
