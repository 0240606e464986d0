"""The safetensors format: an 8-byte length, a JSON header of that length, and the arrays, one after the other.

Written here, and not taken from the `safetensors` package (0.8.0), because its NumPy side reads no bf16 and no fp8,
writes neither the rarer fp8 types nor int4 nor complex128, cannot read a part of an array without importing PyTorch or
mapping the file, and takes a header that names one array twice. The format itself is small.

Everything a header says is checked, against the file's size first, before anything is made of it: see `read_header`.
"""

import json
import math
import os
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import numpy as np

from ..._errors import LONGEST_VALUE, clip
from ._encoding import NAMES
from ._errors import FileError, shown

METADATA = "__metadata__"
MOST_HEADER_BYTES = 100_000_000  # the package's own limit
MOST_DIMENSIONS = 64  # NumPy's
MOST_BYTES = 2**63 - 1
BLOCK_BYTES = 1 << 24
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Stored:
    """An array in a file.

    Attributes:
        dtype: safetensors' name of its dtype.
        shape: its shape.
        begin: where its first byte stands, from the end of the header; for what is still to be written, unknown.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * NAMES[self.dtype].itemsize

    @property
    def end(self) -> int:
        """Where its last byte stands, plus one."""
        return self.begin + self.nbytes


@dataclass(frozen=True)
class Header:
    """What a file says about itself, checked.

    Attributes:
        arrays: by name.
        metadata: texts by name.
        size: bytes before the first array.
    """

    arrays: Mapping[str, Stored]
    metadata: Mapping[str, str]
    size: int


def in_file_order(arrays: Mapping[str, Stored]) -> dict[str, Stored]:
    """The arrays with the places that they get: wide entries first, so that every array is aligned to its own."""
    placed, end = {}, 0
    for name in sorted(arrays, key=lambda name: -NAMES[arrays[name].dtype].itemsize):
        placed[name] = Stored(arrays[name].dtype, arrays[name].shape, end)
        end = placed[name].end
    return placed


def header_bytes(arrays: Mapping[str, Stored], metadata: Mapping[str, str]) -> bytes:
    """The beginning of a file: everything before the first array."""
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    for name, array in arrays.items():
        offsets = [array.begin, array.end]
        entries[name] = {"dtype": array.dtype, "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def read_header(file: IO[bytes], place: str) -> Header:
    """The header of an open file.

    Nothing larger than the file is ever made, and the arrays that it names cover the rest of the file exactly once.

    Args:
        file: open for reading, at its beginning.
        place: its name, for errors.

    Raises:
        FileError: a rule of the format does not hold.
    """
    size = os.fstat(file.fileno()).st_size
    text = _header_text(file, size, place)
    entries = parsed(text, place)
    metadata = entries.pop(METADATA, {})
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        raise FileError(what=f"`{METADATA}` is to map texts to texts.", place=place)
    arrays = {name: _stored(entry, f"{place}: {shown(name)}") for name, entry in entries.items()}
    _check_cover(arrays, size - _LENGTH.size - len(text), place)
    return Header(arrays, metadata, _LENGTH.size + len(text))


def _header_text(file: IO[bytes], size: int, place: str) -> bytes:
    start = file.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        raise FileError(what="the file is too short for safetensors.", place=place, got=f"{len(start)} bytes")
    (length,) = _LENGTH.unpack(start)
    most = min(size - _LENGTH.size, MOST_HEADER_BYTES)
    if length > most:
        raise FileError(
            what="the length of the header does not fit the file: it is cut off, or no safetensors file.",
            place=place,
            got=f"{length} bytes",
            wanted=f"at most {most}",
        )
    text = file.read(length)
    if len(text) < length:
        raise FileError(what="the file ends inside its header.", place=place, got=f"{len(text)} of {length} bytes")
    return text


def parsed(text: bytes | str, place: str) -> dict[str, Any]:
    """The JSON object in `text`: no name twice, no NaN.

    Raises:
        FileError: it is no such object.
    """
    try:
        # `json` would find out the encoding by itself, and take UTF-16.
        found = json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            object_pairs_hook=_object_without_doubles,
            parse_constant=_no_constant,
        )
    except RecursionError:
        raise FileError(what="the header is nested too deeply.", place=place) from None
    except ValueError as error:  # no UTF-8, no JSON, a number of thousands of digits, or from the two hooks
        raise FileError(what="the header is not valid JSON.", place=place, got=_one_line(error)) from None
    if type(found) is not dict:
        raise FileError(what="the header is not a JSON object.", place=place, got=type(found).__name__)
    return found


def _object_without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice!r} stands in it twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _one_line(error: ValueError) -> str:
    return str(error).partition("\n")[0][:LONGEST_VALUE]


def _stored(entry: Any, place: str) -> Stored:
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FileError(what="an array has a dtype, a shape and offsets, and nothing else.", place=place)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(dtype) is not str or dtype not in NAMES:
        raise FileError(
            what="the dtype is not one that Aerogel reads.",
            place=place,
            got=clip(dtype),
            wanted=f"one of {', '.join(NAMES)}",
            to_fix="save the array with another dtype",
        )
    shape = checked_shape(shape, place)
    if math.prod(max(n, 1) for n in shape) * NAMES[dtype].itemsize > MOST_BYTES:
        raise FileError(what="the shape is too large.", place=place, got=clip(list(shape)))
    if not _is_counts(offsets) or len(offsets) != 2:
        raise FileError(what="offsets are two integers.", place=place, got=clip(offsets))
    stored = Stored(dtype, shape, offsets[0])
    if offsets[1] != stored.end:
        wanted = f"{stored.nbytes} bytes for {dtype}{list(shape)}"
        raise FileError(what="the offsets do not fit the shape.", place=place, got=clip(offsets), wanted=wanted)
    return stored


def checked_shape(shape: Any, place: str) -> tuple[int, ...]:
    """A shape as it stands in JSON.

    Raises:
        FileError: it is none.
    """
    if not _is_counts(shape) or len(shape) > MOST_DIMENSIONS:
        wanted = f"at most {MOST_DIMENSIONS} integers from 0"
        raise FileError(what="the shape is not one.", place=place, got=clip(shape), wanted=wanted)
    return tuple(shape)


def _is_counts(values: Any) -> bool:
    return type(values) is list and all(type(n) is int and 0 <= n <= MOST_BYTES for n in values)


def _check_cover(arrays: Mapping[str, Stored], data_bytes: int, place: str) -> None:
    """Arrays stand one after the other, from the end of the header to the end of the file."""
    end = 0
    for name, array in sorted(arrays.items(), key=lambda item: (item[1].begin, item[1].end)):
        if array.begin != end:
            what = "two arrays overlap." if array.begin < end else "bytes between the arrays belong to none."
            raise FileError(what=what, place=f"{place}: {shown(name)}", got=f"begins at {array.begin}", wanted=str(end))
        end = array.end
    if end != data_bytes:
        what = "the file is cut off." if end > data_bytes else "bytes after the last array belong to none."
        raise FileError(what=what, place=place, got=f"{data_bytes} bytes of arrays", wanted=str(end))


def read_box(file: IO[bytes], place: str, start: int, array: Stored, box: Iterable[slice]) -> np.ndarray:
    """A part of an array, new in memory: a slice of step 1 for each of its axes. Beside it a block is held.

    Args:
        file: open for reading.
        place: its name, for errors.
        start: bytes before the first array.
        array: the array.
        box: what is wanted of it.

    Raises:
        FileError: the file has become shorter.
    """
    ranges = [range(n)[part] for n, part in zip(array.shape, box, strict=True)]
    out = np.empty([len(r) for r in ranges], NAMES[array.dtype])
    if out.size:
        _read_into(file, place, out, start + array.begin, array.shape, ranges)
    return out


def write_box(file: IO[bytes], start: int, array: Stored, box: Iterable[slice], data: np.ndarray) -> None:
    """Writes a part of an array to its place in a file that has its full size: `read_box` reads it.

    Args:
        file: open for writing.
        start: bytes before the first array.
        array: the array.
        box: which part: a slice of step 1 for each axis.
        data: what stands there, in C order.
    """
    ranges = [range(n)[part] for n, part in zip(array.shape, box, strict=True)]
    if data.size:
        _write_from(file, data, start + array.begin, array.shape, ranges)


def _write_from(file: IO[bytes], data: np.ndarray, start: int, shape: tuple[int, ...], ranges: list[range]) -> None:
    row_bytes = math.prod(shape[1:]) * data.itemsize
    first = ranges[0].start if shape else 0
    if all(len(r) == n for r, n in zip(ranges[1:], shape[1:], strict=True)):  # it stands in one piece
        file.seek(start + first * row_bytes)
        file.write(data.reshape(-1).view(np.uint8).data)
        return
    for i, row in enumerate(data):
        _write_from(file, row, start + (first + i) * row_bytes, shape[1:], ranges[1:])


def _read_into(
    file: IO[bytes], place: str, out: np.ndarray, start: int, shape: tuple[int, ...], ranges: list[range]
) -> None:
    if not shape:
        return _read_whole(file, place, out, start)
    row_bytes = math.prod(shape[1:]) * out.itemsize
    first = ranges[0].start
    if all(len(r) == n for r, n in zip(ranges[1:], shape[1:], strict=True)):  # what is wanted stands in one piece
        return _read_whole(file, place, out, start + first * row_bytes)
    if row_bytes > BLOCK_BYTES:
        for i in range(len(out)):
            _read_into(file, place, out[i, ...], start + (first + i) * row_bytes, shape[1:], ranges[1:])
        return None
    rows = BLOCK_BYTES // row_bytes
    inside = tuple(slice(r.start, r.stop) for r in ranges[1:])
    for i in range(0, len(out), rows):
        block = np.empty((min(rows, len(out) - i), *shape[1:]), out.dtype)
        _read_whole(file, place, block, start + (first + i) * row_bytes)
        out[i : i + rows] = block[(slice(None), *inside)]
    return None


def _read_whole(file: IO[bytes], place: str, out: np.ndarray, start: int) -> None:
    file.seek(start)
    buffer = out.reshape(-1).view(np.uint8).data
    while buffer:
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise FileError(what="the file became shorter while it was read.", place=place)
        buffer = buffer[count:]
