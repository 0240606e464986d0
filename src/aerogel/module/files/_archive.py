"""An open file: what stands in it, and its arrays or parts of them, as they were saved."""

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import jax
import jax.numpy as jnp
import numpy as np

from ..._errors import UsageError
from ._errors import FileError, shown
from ._manifest import Manifest, manifest_of
from ._safetensors import BLOCK_BYTES, Header, read_box, read_header


@dataclass(frozen=True)
class Archive:
    """An open file whose header and manifest have been checked."""

    file: IO[bytes]
    place: str
    header: Header
    manifest: Manifest

    def read(self, name: str, box: Sequence[slice] | None = None) -> np.ndarray:
        """An array or number, or the data of keys; with `box` the part of it that these slices tell.

        Raises:
            FileError: an entry has a value that its dtype does not have, or the file has become shorter.
        """
        stored, spec = self.header.arrays[name], self.manifest.leaves[name]
        box = [slice(None)] * len(spec.shape) if box is None else box
        tail = [slice(None)] * (len(stored.shape) - len(spec.shape))
        raw = read_box(self.file, self.place, self.header.size, stored, [*box, *tail])
        array = spec.encoding.decode(raw)
        if array is None:
            place = f"{self.place}: {shown(name)}"
            raise FileError(what=f"a value is none that {spec.dtype} has.", place=place)
        return array

    def keys(self, name: str) -> jax.Array:
        """Keys of random numbers.

        Raises:
            FileError: the data are none of that kind of keys.
        """
        spec, data = self.manifest.leaves[name], self.read(name)
        try:
            return jax.random.wrap_key_data(jnp.asarray(data), impl=spec.dtype)
        except (TypeError, ValueError):
            place, got = f"{self.place}: {shown(name)}", f"{data.dtype}{list(data.shape)}"
            what = "these are no data of random keys that JAX knows."
            raise FileError(what=what, place=place, got=got, wanted=shown(str(spec))) from None

    def are_equal(self, name: str, other: str) -> bool:
        """Whether two arrays have the same dtype, shape and bytes. They are read block by block."""
        one, two = self.header.arrays[name], self.header.arrays[other]
        if (one.dtype, one.shape) != (two.dtype, two.shape):
            return False
        return all(a == b for a, b in zip(self._blocks(name), self._blocks(other), strict=True))

    def _blocks(self, name: str) -> Iterator[bytes]:
        stored = self.header.arrays[name]
        for begin in range(stored.begin, stored.end, BLOCK_BYTES):
            self.file.seek(self.header.size + begin)
            yield self.file.read(min(BLOCK_BYTES, stored.end - begin))


@contextmanager
def opened(path: str | os.PathLike[str]) -> Generator[Archive]:
    """The file at `path`.

    Raises:
        UsageError: it is a pipe or a device: opening one may wait for ever, and a place in it cannot be looked up.
        OSError: it cannot be opened.
        FileError: it is not valid.
    """
    place = os.path.basename(os.fsdecode(path))
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UsageError(argument="path", got=os.fsdecode(path), wanted="the name of an ordinary file", function="load")
    with open(path, "rb") as file:
        header = read_header(file, place)
        yield Archive(file, place, header, manifest_of(header, place))
