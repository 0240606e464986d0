"""Files where several processes run one program: what each writes and reads, and what none of them can write."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerogel.module.files import _together

SOURCE = str(Path(__file__).parents[2] / "src")

PROGRAM = """
import os, sys, tracemalloc
import jax, numpy as np

me, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=me)
import aerogel as ag
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
values = np.arange(2048 * 1024, dtype=np.float32).reshape(2048, 1024)


class Model(ag.Module):
    weight: jax.Array
    half: jax.Array
    count: jax.Array
    keys: jax.Array
    other: jax.Array = None


def make():
    weight = jax.numpy.arange(values.size, dtype=jax.numpy.float32).reshape(values.shape)
    half, keys = weight[:8].astype(jax.numpy.bfloat16), jax.random.split(jax.random.key(3), 4)
    return Model(weight, half, jax.numpy.int32(7), keys)


def equal(got, want):
    # by the parts that this process has
    if jax.numpy.issubdtype(got.dtype, jax.dtypes.prng_key):
        got, want = jax.random.key_data(got), jax.random.key_data(want)
    want = np.asarray(want.addressable_data(0))
    for shard in got.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), want[shard.index])


whole = ag.shard_init(make, mesh, {})
spread = ag.shard_init(make, mesh, {"weight": P("y", "x"), "half": P(None, ("x", "y")), "keys": P("x")})
alone, together = os.path.join(folder, f"{me}.safetensors"), os.path.join(folder, "all.safetensors")
ag.save(alone, whole)

tracemalloc.start()
ag.save(together, spread)
peak = tracemalloc.get_traced_memory()[1]
tracemalloc.stop()
assert peak < values.nbytes / 2, (peak, values.nbytes)  # two shards of a quarter are here
assert open(alone, "rb").read() == open(together, "rb").read()

# The other way around, on another mesh.
line = jax.make_mesh((4,), ("z",), axis_types=(jax.sharding.AxisType.Auto,))
for like in (whole, ag.shard(jax.eval_shape(make), line, {"**": "z"})):
    loaded = ag.load(together, like=like)
    jax.tree.map(equal, loaded, whole)
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(like)):
        assert a.sharding == b.sharding
assert loaded.weight.addressable_shards[0].data.shape == (512, 1024)

# What one process cannot do, none does, and the file is as it was.
for path, options in [(os.path.join(folder, "no", "file"), {}), (together, {"transform": {"weight": np.negative}})]:
    try:
        ag.save(path, spread, **options)
    except (OSError, ag.SaveError) as error:
        assert options == {} or error.place == "weight", error
    else:
        raise AssertionError(path)
if me == 1:
    import aerogel.module.files._together as here
    def fails(*_):
        raise OSError("no space left")
    here.write_box = fails
try:
    ag.save(together, spread)
except OSError as error:
    assert me == 1, error
except ag.SaveError as error:
    assert me == 0 and "process 1" in error.what, error
assert open(alone, "rb").read() == open(together, "rb").read()
print("done")
"""


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_two_processes_save_and_load(tmp_path: Path) -> None:
    """What each process has a part of, they write together: the bytes that each would write of the whole.

    No process holds more of an array than its shards. Loading gives each device its part, on other meshes too. Where
    one process cannot write, both say so, and the file stays as it was.
    """
    port = str(free_port())
    env = os.environ | {"PYTHONPATH": SOURCE, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(me), port, str(tmp_path)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for me in range(2)
    ]
    try:
        told = [each.communicate(timeout=120) for each in processes]
    finally:
        for each in processes:
            each.kill()
    last_lines = [out.splitlines()[-1:] for out, _ in told]  # before them come those of JAX's collectives
    assert last_lines == [["done"]] * 2, "\n".join(error for _, error in told)
    assert not list(tmp_path.glob("*.tmp"))  # the first process may still be about to remove it when the second ends
    assert [each.returncode for each in processes] == [0, 0]


def test_the_others_hear_of_any_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a process fails with, it tells those that wait for it, and then fails with that; no file is left."""
    heard: list[bool] = []

    def gather(went_well: Any) -> np.ndarray:
        heard.append(bool(went_well))
        return np.array([went_well])

    def parts() -> Any:
        raise ZeroDivisionError("an array that cannot be computed")
        yield

    monkeypatch.setattr(_together, "process_allgather", gather)
    with pytest.raises(ZeroDivisionError):
        _together.write_together(tmp_path / "file", b"", 8, parts())
    assert heard == [True, False]
    assert not list(tmp_path.iterdir())
