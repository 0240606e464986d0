"""A file is not trusted: whatever its bytes are, it loads as what it should be, or there is our error, and no harm."""

import json
import os
import random
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aerogel as ag
from aerogel.module.files import _safetensors
from aerogel.module.files._encoding import ENCODINGS
from aerogel.module.files._errors import FileError, MismatchError
from module.saved import new_file

GOOD: dict[str, Any] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([True, False, True]),
    "i4": np.array([-8, 7], ENCODINGS["int4"].dtype),
    "c": np.array([1 + 2j]),
    "key": jax.random.key(0),
    "z": np.zeros((0, 3), np.int8),
    "n": 3,
}


@pytest.fixture(scope="module", name="good")
def _good() -> Iterator[bytes]:
    """The bytes of a file with every kind of leaf in it."""
    with new_file() as path:
        ag.save(path, GOOD)
        yield path.read_bytes()


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header: a value for JSON, or bytes as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def load_bytes(content: bytes, like: Any = None, **options: Any) -> Any:
    """What is loaded from a file with this content."""
    with new_file() as path:
        path.write_bytes(content)
        return ag.load(path, like=like, **options)


def entry(**changes: Any) -> dict[str, Any]:
    """A header of one array of two bytes, with some of it changed."""
    return {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]} | changes}


def manifest(**changes: Any) -> dict[str, Any]:
    """A header with a manifest, of which some is changed."""
    said: dict[str, Any] = {
        "schema": 1,
        "tree": "dict",
        "leaves": {"a": {"kind": "array", "dtype": "uint8", "shape": [2]}},
        "ties": {},
    }
    return {"__metadata__": {"aerogel": json.dumps(said | changes)}, **entry()}


def leaf(**changes: Any) -> dict[str, Any]:
    """The same, with some of its one leaf changed."""
    return manifest(leaves={"a": {"kind": "array", "dtype": "uint8", "shape": [2]} | changes})


ATTACKS: dict[str, bytes] = {
    "huge header in a small file": file_of({}, length=99_000_000),
    "empty file": b"",
    "seven bytes": b"\0" * 7,
    "no header": struct.pack("<Q", 0),
    "pickle": b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93.",
    "zip of a NumPy archive": b"PK\x03\x04" + b"\0" * 100,
    "huge header length": file_of(entry(), b"ab", length=2**63),
    "largest header length": file_of(entry(), b"ab", length=2**64 - 1),
    "header longer than the file": file_of(entry(), b"ab", length=1000),
    "header shorter than it is": file_of(entry(), b"ab", length=20),
    "not UTF-8": file_of(b'{"\xff\xfe": 1}'),
    "UTF-16": file_of(json.dumps(entry()).encode("utf-16"), b"ab"),
    "byte order mark": file_of(b"\xef\xbb\xbf" + json.dumps(entry()).encode(), b"ab"),
    "no JSON": file_of(b"{'a': 1}"),
    "a list": file_of([1]),
    "a number": file_of(b"1"),
    "nested lists": file_of(b"[" * 100_000),
    "nested objects": file_of(b'{"a":' * 100_000),
    "nested in the manifest": file_of({"__metadata__": {"aerogel": "[" * 100_000}, **entry()}, b"ab"),
    "name twice": file_of(json.dumps(entry())[:-1].encode() + b"," + json.dumps(entry())[1:].encode(), b"ab"),
    "field twice": file_of(b'{"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}}', b"ab"),
    "metadata twice": file_of(b'{"__metadata__":{},"__metadata__":{}}'),
    "NaN": file_of(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,2]}}', b"ab"),
    "Infinity": file_of(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,Infinity]}}', b"ab"),
    "infinite by overflow": file_of(b'{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,2]}}', b"ab"),
    "a float as size": file_of(entry(shape=[2.0]), b"ab"),
    "true as size": file_of(entry(shape=[2, True]), b"ab"),
    "a text as size": file_of(entry(shape=["2"]), b"ab"),
    "null as size": file_of(entry(shape=[None]), b"ab"),
    "no list of sizes": file_of(entry(shape=2), b"ab"),
    "negative size": file_of(entry(shape=[-2]), b"ab"),
    "two negative sizes": file_of(entry(shape=[-2, -1]), b"ab"),
    "overflowing shape": file_of(entry(shape=[2**32, 2**32, 2]), b"ab"),
    "shape that overflows to the right size": file_of(entry(shape=[2**63 + 1, 2]), b"ab"),
    "huge axis beside an empty one": file_of(entry(shape=[0, 2**62, 2**62], data_offsets=[0, 0])),
    "a number of 10,000 digits": file_of(b'{"a":{"dtype":"U8","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,2]}}'),
    "a number of 4,000 digits": file_of(b'{"a":{"dtype":"U8","shape":[' + b"9" * 4_000 + b'],"data_offsets":[0,2]}}'),
    "65 axes": file_of(entry(shape=[1] * 64 + [2]), b"ab"),
    "unknown dtype": file_of(entry(dtype="U9"), b"ab"),
    "no dtype": file_of(entry(dtype=None), b"ab"),
    "dtype of NumPy's": file_of(entry(dtype="object"), b"ab"),
    "unhashable dtype": file_of(entry(dtype=["U8"]), b"ab"),
    "entry that is no object": file_of({"a": [1]}, b"ab"),
    "further field": file_of(entry(strides=[1]), b"ab"),
    "missing field": file_of({"a": {"dtype": "U8", "shape": [2]}}, b"ab"),
    "reversed offsets": file_of(entry(data_offsets=[2, 0]), b"ab"),
    "negative offsets": file_of(entry(data_offsets=[-2, 0]), b"ab"),
    "offsets out of the file": file_of(entry(data_offsets=[2**40, 2**40 + 2]), b"ab"),
    "offsets beyond 64 bits": file_of(entry(data_offsets=[2**64, 2**64 + 2]), b"ab"),
    "three offsets": file_of(entry(data_offsets=[0, 1, 2]), b"ab"),
    "size that is not the shape's": file_of(entry(data_offsets=[0, 1]), b"a"),
    "end that is not the shape's": file_of(entry(data_offsets=[0, 1]), b"ab"),
    "overlap": file_of(entry() | {"b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}, b"abc"),
    "one place for two": file_of(entry() | {"b": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, b"ab"),
    "gap": file_of(entry() | {"b": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]}}, b"abcde"),
    "gap at the beginning": file_of(entry(data_offsets=[1, 3]), b"abc"),
    "bytes at the end": file_of(entry(), b"abc"),
    "cut off": file_of(entry(), b"a"),
    "huge array in a small file": file_of(entry(shape=[2**40], data_offsets=[0, 2**40]), b"ab"),
    "metadata that is no object": file_of({"__metadata__": [1], **entry()}, b"ab"),
    "metadata that is no text": file_of({"__metadata__": {"a": 1}, **entry()}, b"ab"),
    "bool of 2": file_of(entry(dtype="BOOL"), b"\x01\x02"),
    "manifest that is no JSON": file_of({"__metadata__": {"aerogel": "x"}, **entry()}, b"ab"),
    "manifest that is a list": file_of({"__metadata__": {"aerogel": "[]"}, **entry()}, b"ab"),
    "NaN where nobody looks": file_of(manifest(note=float("nan")), b"ab"),
    "no schema": file_of(manifest(schema=None), b"ab"),
    "schema true": file_of(manifest(schema=True), b"ab"),
    "schema of tomorrow": file_of(manifest(schema=2), b"ab"),
    "no leaves": file_of(manifest(leaves=None), b"ab"),
    "other leaves": file_of(manifest(leaves={"b": {}}), b"ab"),
    "leaf that is no object": file_of(manifest(leaves={"a": 1}), b"ab"),
    "leaf of unknown kind": file_of(leaf(kind="pickle"), b"ab"),
    "leaf of unhashable kind": file_of(leaf(kind=[]), b"ab"),
    "leaf of unknown dtype": file_of(leaf(dtype="object"), b"ab"),
    "leaf of unhashable dtype": file_of(leaf(dtype={}), b"ab"),
    "leaf of another dtype": file_of(leaf(dtype="int8"), b"ab"),
    "leaf of another shape": file_of(leaf(shape=[3]), b"ab"),
    "leaf of negative shape": file_of(leaf(shape=[-2]), b"ab"),
    "number with a shape": file_of(leaf(kind="number", dtype="bool"), b"ab"),
    "number stored with a shape": file_of(
        {**leaf(kind="number", dtype="int", shape=[1]), "a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}},
        b"12345678",
    ),
    "number of unknown class": file_of(leaf(kind="number", dtype="str", shape=[]), b"ab"),
    "int4 of 8": file_of(
        {**leaf(dtype="int4"), "a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}, b"\x01\x08"
    ),
    "keys of no kind": file_of(
        {**leaf(kind="key", dtype="nope", shape=[]), "a": {"dtype": "U32", "shape": [2], "data_offsets": [0, 8]}},
        b"12345678",
    ),
    "keys of another size": file_of(
        {**leaf(kind="key", dtype="rbg", shape=[]), "a": {"dtype": "U32", "shape": [2], "data_offsets": [0, 8]}},
        b"12345678",
    ),
    "keys with a name that moves the cursor": file_of(
        {**leaf(kind="key", dtype="\x1b[2J", shape=[]), "a": {"dtype": "U32", "shape": [2], "data_offsets": [0, 8]}},
        b"12345678",
    ),
    "ties that are none": file_of(manifest(ties=[1]), b"ab"),
    "tie without a source": file_of(manifest(ties={"b": {}}), b"ab"),
    "tree that is no text": file_of(manifest(tree=1), b"ab"),
}


def test_the_parts_of_the_attacks_load() -> None:
    """Unchanged, what the attacks are made of is a good file: each fails for its own reason."""
    for header in (entry(), manifest(), leaf()):
        np.testing.assert_array_equal(load_bytes(file_of(header, b"ab"))["a"], [97, 98])


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_refused(name: str) -> None:
    """Each gives our error, of a few printable lines."""
    with pytest.raises(FileError) as caught:
        load_bytes(ATTACKS[name])
    text = str(caught.value)
    assert len(text) < 1500
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize("chain", [{"b": "c", "c": "b"}, {"b": "b"}, {"b": "nothing"}, {"b": "c", "c": "a", "a": "b"}])
def test_ties_that_lead_back_end(chain: dict[str, str]) -> None:
    """A file whose ties go round in circles loads, or lacks the leaf, in no time."""
    header = manifest(ties={place: {"source": source} for place, source in chain.items()})
    content = file_of(header, b"ab")
    np.testing.assert_array_equal(load_bytes(content)["a"], [97, 98])
    with pytest.raises(MismatchError):
        load_bytes(content, like=[np.zeros(2, np.uint8)])


def test_long_chains_and_many_names_take_no_time() -> None:
    """Following ties and proposing names stays linear in the file: a million pairs would take minutes."""
    count = 20_000
    chain = {f"t{i}": {"source": f"t{i + 1}"} for i in range(count)} | {f"t{count}": {"source": "a"}}
    content = file_of(manifest(ties=chain), b"ab")
    like = {f"t{i}": np.zeros(2, np.uint8) for i in range(0, count, 10)} | {"a": np.zeros(2, np.uint8)}
    loaded = load_bytes(content, like=like, convention="torch")
    np.testing.assert_array_equal(loaded["t10"], [97, 98])
    entries = {f"n{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(3000)}
    with pytest.raises(MismatchError) as caught:
        load_bytes(file_of(entries), like={f"m{i}": np.zeros(0, np.uint8) for i in range(3000)})
    assert len(caught.value.differences) == 6000


def test_names_in_messages_move_no_cursor() -> None:
    """Names that a file brings are escaped and cut where a message shows them."""
    header = {"\x1b[2J\n" + "x" * 5000: entry()["a"]}
    with pytest.raises(MismatchError) as caught:
        load_bytes(file_of(header, b"ab"), like=[])
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 2000
    with pytest.raises(MismatchError) as caught:
        load_bytes(file_of(manifest(tree="\x1b[2J"), b"ab"), like=[])
    assert "\x1b" not in str(caught.value)
    with pytest.raises(FileError):  # before the kind of keys could stand in a list of differences
        load_bytes(ATTACKS["keys with a name that moves the cursor"], like=[])


def test_memory_stays_within_the_files_size() -> None:
    """A small file that promises much is refused before anything large is made."""
    promises = [
        name for name in ATTACKS if "huge" in name or "overflow" in name or "largest" in name or "out of" in name
    ]
    assert len(promises) >= 6
    tracemalloc.start()
    try:
        for name in promises:
            with pytest.raises(FileError):
                load_bytes(ATTACKS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


def test_a_header_has_a_largest_size(good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the file is: JSON takes many times its size in memory."""
    (length,) = struct.unpack("<Q", good[:8])
    monkeypatch.setattr(_safetensors, "MOST_HEADER_BYTES", length)
    assert len(load_bytes(good)) == len(GOOD)
    monkeypatch.setattr(_safetensors, "MOST_HEADER_BYTES", length - 1)
    with pytest.raises(FileError, match=f"at most {length - 1}"):
        load_bytes(good)


def check_outcome(content: bytes) -> None:
    """Either all is there with its shapes and dtypes, or there is an error that a caller can catch by its class."""
    try:
        loaded = load_bytes(content, like=GOOD)
    except (FileError, MismatchError):
        return
    assert jax.tree.structure(loaded) == jax.tree.structure(GOOD)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(GOOD), strict=True):
        assert type(a) is type(b)
        assert np.shape(a) == np.shape(b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
        if isinstance(a, np.ndarray) and a.dtype == np.bool_:
            assert set(a.tobytes()) <= {0, 1}


def mutated(content: bytes, dice: random.Random) -> bytes:
    """The bytes with a few accidents: flipped bits, other bytes, cuts, insertions, repeated and moved pieces."""
    found = bytearray(content)
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(dice.randint(1, 4)):
        # Most of what can go wrong stands in the header.
        at = dice.randrange(min(len(found), header_end) if dice.random() < 0.7 else len(found)) if found else 0
        to = min(len(found), at + dice.randint(1, 20))
        match dice.randrange(6):
            case 0:
                found[at:to] = bytes([found[at] ^ 1 << dice.randrange(8)]) + found[at + 1 : to] if found else b""
            case 1:
                found[at:to] = bytes(dice.randrange(256) for _ in range(to - at))
            case 2:
                del found[at:]
            case 3:
                del found[at:to]
            case 4:
                found[at:at] = found[at:to]
            case _:
                piece = dice.choice(
                    [b"0", b"-", b"9999999999999999999", b"[", b"{", b'"', b",", b"\0", b"null", b"1e9"]
                )
                found[at : at + dice.randint(0, 2)] = piece
    if dice.random() < 0.5:  # let the length fit again, so that the header is read
        end = found.find(b"}}", max(0, header_end - 100))
        found[:8] = struct.pack("<Q", (end + 2 if end > 0 else header_end) - 8)
    return bytes(found)


@given(st.integers(0, 2**32))
def test_mutated_files(good: bytes, seed: int) -> None:
    """A file with accidents in it loads as the like of what it was, or gives our error; nothing else ever comes out."""
    dice = random.Random(seed)
    for _ in range(10):
        check_outcome(mutated(good, dice))


ODD: list[Any] = [None, True, 0, 1, 2, 3, 4, 8, -1, 2**63, 2.5, "", "U8", "I8", "F32", "BOOL", "uint8", "int4", "key"]
ODD += ["number", "array", "rbg", "complex", [], [2], [0, 2], [3, 2], [2, 2, 2], {}, {"source": "['w']"}, "['w']"]


def replaced(said: Any, dice: random.Random) -> Any:
    """A value of JSON with one place in it changed: another value there, or it is gone, or doubled."""
    if not isinstance(said, dict | list) or not said or dice.random() < 0.1:
        return said + dice.choice([-1, 1, 8]) if type(said) is int and dice.random() < 0.5 else dice.choice(ODD)
    found = said.copy()
    place = dice.choice(list(said) if isinstance(said, dict) else range(len(said)))
    if dice.random() < 0.8:
        found[place] = replaced(said[place], dice)
    elif dice.random() < 0.5:
        del found[place]
    elif isinstance(found, dict):
        found[str(dice.choice(ODD))] = said[place]
    else:
        found.insert(place, said[place])
    return found


def mutated_within(content: bytes, dice: random.Random) -> bytes:
    """The file with changes that are still JSON, in its header, in its manifest, and other bytes in its arrays."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:end]), bytearray(content[end:])
    said = json.loads(header["__metadata__"]["aerogel"])
    header |= {"__metadata__": {}} if dice.random() < 0.02 else {}
    for _ in range(dice.randint(0, 2)):
        header = replaced(header, dice)
    for _ in range(dice.randint(0, 2)):
        said = replaced(said, dice)
    if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict) and header["__metadata__"]:
        header["__metadata__"]["aerogel"] = json.dumps(said)
    for _ in range(dice.randint(0, 3)):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return file_of(header, bytes(data))


@given(st.integers(0, 2**32))
def test_changed_headers(good: bytes, seed: int) -> None:
    """A header that is JSON and says something else gives our error, or loads as what it should be."""
    dice = random.Random(seed)
    for _ in range(10):
        check_outcome(mutated_within(good, dice))


def test_every_length(good: bytes) -> None:
    """A file that was cut off, at any byte, is refused."""
    for length in range(0, len(good), 7):
        with pytest.raises(FileError):
            load_bytes(good[:length])
    with pytest.raises(FileError):
        load_bytes(good[:-1])


def test_a_file_that_shrinks_while_it_is_read() -> None:
    """Somebody else cuts the file after its header was checked: our error, and no signal that ends the process."""
    from aerogel.module.files._archive import opened

    with new_file() as path:
        ag.save(path, np.zeros(1 << 20))
        with opened(path) as archive:
            os.truncate(path, 1 << 19)
            with pytest.raises(FileError, match="shorter"):
                archive.read("value")


def test_nothing_is_read_when_something_differs(monkeypatch: pytest.MonkeyPatch, good: bytes) -> None:
    """All differences are found from the header alone."""
    from aerogel.module.files import _archive

    monkeypatch.setattr(_archive, "read_box", lambda *_: pytest.fail("an array was read"))
    with pytest.raises(MismatchError):
        load_bytes(good, like=GOOD | {"w": np.zeros((2, 2), np.float32)})
