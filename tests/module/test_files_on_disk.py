"""A file is there whole or not at all, and other programs can read it."""

import importlib.util
import json
import os
import signal
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.module.files._encoding import NAMES
from module.saved import check_same, new_file

SOURCE = str(Path(__file__).parents[2] / "src")


class Model(ag.Module):
    a: Any
    b: Any


KILLED = """
import os, signal, sys
import numpy as np
import aerogel as ag
from aerogel.module.files import _save

place, when = sys.argv[1:]
on_host, replace, fsync = _save._on_host, os.replace, os.fsync
calls = []

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def second(*args):
    calls.append(1)
    return die() if len(calls) == 2 else on_host(*args)

if when == "between arrays":
    _save._on_host = second
if when == "before the disk has it":
    os.fsync = die
if when == "before the new name":
    os.replace = die
if when == "after the new name":
    os.replace = lambda *args: (replace(*args), die())
ag.save(place, [np.full(100_000, 2.0), np.full(100_000, 2.0)])
"""


@pytest.mark.parametrize(
    ("when", "value"),
    [
        ("between arrays", 1.0),
        ("before the disk has it", 1.0),
        ("before the new name", 1.0),
        ("after the new name", 2.0),
        ("never", 2.0),
    ],
)
def test_a_killed_process_leaves_a_whole_file(tmp_path: Path, when: str, value: float) -> None:
    """Whenever a process dies while it saves, the name leads to the old file or to the new one, and that loads."""
    path = tmp_path / "model.safetensors"
    tree = [np.full(100_000, 1.0), np.full(100_000, 1.0)]
    ag.save(path, tree)
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), when], env=env, capture_output=True, text=True)
    assert done.returncode == (0 if when == "never" else -signal.SIGKILL), done.stderr
    for array in ag.load(path, like=tree):
        assert (array == value).all()


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or Ctrl-C: the old file is there, and no temporary one."""
    path = tmp_path / "model.safetensors"
    ag.save(path, [1])
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):

        def fail(*_: Any, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(type(error)):
                ag.save(path, [2])
        assert os.listdir(tmp_path) == [path.name]
        assert ag.load(path, like=[0]) == [1]


def test_file_and_name_are_brought_to_the_disk_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes before the name leads to them, and the name before `save` returns: a power cut loses neither."""
    done: list[str] = []
    real = os.fsync, os.replace

    def noting_fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real[0](descriptor)

    def noting_replace(old: Any, new: Any) -> None:
        done.append("name")
        real[1](old, new)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    ag.save(tmp_path / "model.safetensors", [1])
    assert done == ["file", "name", "folder"]


def test_permissions(tmp_path: Path) -> None:
    """A new file has those that the umask leaves, one that is replaced keeps its own."""
    path = tmp_path / "model.safetensors"
    before = os.umask(0o027)
    try:
        ag.save(path, [1])
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        ag.save(path, [2])
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_links(tmp_path: Path) -> None:
    """A link stays one, and what it leads to is replaced, even before it is there; other names keep the old one."""
    real, link, other = tmp_path / "real", tmp_path / "sub" / "link", tmp_path / "other"
    link.parent.mkdir()
    link.symlink_to("../real")
    ag.save(link, [1])
    os.link(real, other)
    ag.save(str(link), [2])
    assert link.is_symlink()
    assert not real.is_symlink()
    assert ag.load(real, like=[0]) == ag.load(link, like=[0]) == [2]
    assert ag.load(other, like=[0]) == [1]


def test_places_where_no_file_can_be(tmp_path: Path) -> None:
    """A missing folder, a folder, a file as folder, a pipe: the error names it, and is Python's where it has one."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ag.save(tmp_path / "nowhere" / "model", [1])
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        ag.save(tmp_path, [1])
    ag.save(tmp_path / "file", [1])
    with pytest.raises(NotADirectoryError, match="file"):
        ag.save(tmp_path / "file" / "model", [1])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ag.UsageError, match="ordinary"):
        ag.save(tmp_path / "pipe", [1])
    with pytest.raises(ag.UsageError, match="ordinary"):
        ag.save("/dev/null", [1])
    with pytest.raises(ag.UsageError, match="ordinary"):
        ag.load(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="nothing"):
        ag.load(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        ag.load(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renaming would not ask whether the old file may be written: `save` does (as root everything may be)."""
    path = tmp_path / "model"
    ag.save(path, [1])
    monkeypatch.setattr(os, "access", lambda place, mode: not (mode & os.W_OK and str(place) == str(path)))
    with pytest.raises(PermissionError, match="model"):
        ag.save(path, [2])
    assert ag.load(path, like=[0]) == [1]


def read_plainly(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The format as its specification says it, in eight lines that share nothing with ours."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    arrays = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(content[begin:end], NAMES[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata


def test_the_bytes_are_the_formats() -> None:
    """A reader that knows nothing of Aerogel finds every array under its name; entries are aligned to their size."""
    tree = {"a": np.arange(3, dtype=np.int8), "b": np.arange(4.0).reshape(2, 2), "c": jnp.ones(5, jnp.bfloat16)}
    with new_file() as path:
        ag.save(path, tree)
        arrays, metadata = read_plainly(path)
        header_size = 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]
        for name, leaf in tree.items():
            np.testing.assert_array_equal(arrays[f"['{name}']"], leaf)
        assert header_size % 8 == 0
        assert list(arrays) == ["['b']", "['c']", "['a']"]
        said = json.loads(metadata["aerogel"])
        assert said["schema"] == 1
        assert said["leaves"]["['b']"] == {"kind": "array", "dtype": "float64", "shape": [2, 2]}


def test_a_file_of_pytorchs() -> None:
    """What `safetensors.torch.save_model` writes for a tied model: one copy, the other name in the metadata."""
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    header = {
        "__metadata__": {"format": "pt", "a.weight": "b.weight"},
        "b.weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]},
    }
    text = json.dumps(header).encode()
    array = jnp.zeros((2, 3))
    untied = Model({"weight": jnp.zeros((2, 3))}, {"weight": jnp.ones((2, 3))})
    with new_file() as path:
        path.write_bytes(struct.pack("<Q", len(text)) + text + weight.tobytes())
        for like in (Model({"weight": array}, {"weight": array}), untied):
            loaded = ag.load(path, like=like, convention="torch", transform={"*.weight": np.transpose})
            np.testing.assert_array_equal(loaded.a["weight"], weight.T)
            np.testing.assert_array_equal(loaded.b["weight"], weight.T)


class Embedding(ag.Module):
    weight: jax.Array


class Dense(ag.Module):
    weight: jax.Array
    bias: jax.Array | None = None


class Tied(ag.Module):
    """The model of `from_torch.safetensors`."""

    embed: Embedding
    layers: list[Dense]
    head: Dense
    count: np.ndarray
    mask: jax.Array

    @classmethod
    def of(cls, is_tied: bool) -> "Tied":
        """With zeros in it."""
        weight, half = jnp.zeros((5, 2)), jnp.bfloat16
        layers = [Dense(jnp.zeros((3, 2)), jnp.zeros(3)), Dense(jnp.zeros((2, 3), half), jnp.zeros(2, half))]
        head = Dense(weight if is_tied else jnp.ones((5, 2)))
        return cls(Embedding(weight), layers, head, np.zeros((), np.int64), jnp.zeros(2, bool))


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_file_that_pytorch_wrote(is_tied: bool) -> None:
    """PyTorch 2.13's `save_model` of a tied model with buffers: its values come in, and go out as it wrote them.

    Its parameters are `arange(size) / 4 + n` for the n-th. PyTorch 2.13 itself reads the file that comes out here, by
    `load_model` with `strict=True` (tried on 2026-11-21; it is not in the test environment).
    """
    source = Path(__file__).parent / "from_torch.safetensors"
    model = ag.load(source, like=Tied.of(is_tied), convention="torch")
    parameters = [model.embed.weight, *(x for each in model.layers for x in (each.weight, each.bias))]
    for n, found in enumerate(parameters):
        assert found is not None
        np.testing.assert_array_equal(np.float32(found), np.arange(found.size).reshape(found.shape) / 4 + n)
    assert (int(model.count), model.mask.tolist()) == (7, [True, False])
    np.testing.assert_array_equal(model.head.weight, model.embed.weight)
    assert (model.head.weight is model.embed.weight) == is_tied
    with new_file() as path:
        ag.save(path, model, convention="torch")
        (arrays, metadata), (wanted, torchs) = read_plainly(path), read_plainly(source)
    assert metadata.get("head.weight") == (torchs["head.weight"] if is_tied else None)
    assert set(arrays) - set(wanted) == (set() if is_tied else {"head.weight"})
    for name, array in wanted.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].tobytes() == array.tobytes()


def test_a_file_for_pytorch() -> None:
    """Dots between steps, `format: pt`, and the tied name in the metadata, as PyTorch's own files have them."""
    array = jnp.ones((2, 3))
    with new_file() as path:
        ag.save(path, Model([array], {"weight": array}), convention="torch", transform={"*": np.transpose})
        arrays, metadata = read_plainly(path)
    assert {name: found.shape for name, found in arrays.items()} == {"a.0": (3, 2)}
    assert metadata["format"] == "pt"
    assert metadata["b.weight"] == "a.0"


if importlib.util.find_spec("safetensors"):  # in the `test` group; where it is not installed, the tests above stand

    def test_the_safetensors_package_reads_ours_and_we_read_its() -> None:
        """All dtypes that its NumPy side has, both ways, with names of all kinds."""
        import safetensors.numpy

        known = "BOOL U8 I8 U16 I16 U32 I32 U64 I64 F16 F32 F64 C64".split()
        tree = {f"é.{name}['x']": np.ones((2, 3), NAMES[name]) for name in known} | {
            "": np.zeros((0, 2)),
            "s": np.ones(()),
        }
        with new_file() as path:
            ag.save(path, tree, convention="torch")
            theirs = safetensors.numpy.load_file(path)
            assert set(theirs) == {name or "value" for name in tree}
            for name, array in theirs.items():
                np.testing.assert_array_equal(array, tree.get(name, tree[""]))
            safetensors.numpy.save_file(tree, path, metadata={"note": "x"})
            check_same(ag.load(path, like=tree, convention="torch", rename=lambda name: name or "value"), tree)

    def test_the_safetensors_package_writes_small_floats_that_we_read() -> None:
        """It writes bf16 and fp8 from NumPy, which it cannot read there: we can."""
        import safetensors.numpy

        tree = {str(NAMES[name]): np.ones(3, NAMES[name]) for name in ("BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0")}
        with new_file() as path:
            safetensors.numpy.save_file(tree, path)
            check_same(ag.load(path, like=tree, convention="torch"), tree)
            check_same(
                ag.load(path, like=jax.tree.map(jnp.asarray, tree), convention="torch"), jax.tree.map(jnp.asarray, tree)
            )
