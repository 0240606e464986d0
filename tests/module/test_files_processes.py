"""Files where several processes run one program: what each writes and reads, and what none of them can write."""

import os
import socket
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[2] / "src")

PROGRAM = """
import os, sys
import jax, numpy as np

me, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=me)
import aerogel as ag
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec

mesh = jax.make_mesh((jax.device_count(),), ("x",))
everywhere, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("x"))
values = np.arange(8, dtype=np.float32)


class Model(ag.Module):
    weight: jax.Array
    key: jax.Array


def placed(sharding):
    key = jax.jit(lambda: jax.random.key(3), out_shardings=everywhere)()
    return Model(jax.make_array_from_callback((8,), sharding, lambda box: values[box]), key)


path = os.path.join(folder, f"{me}.safetensors")
whole = placed(everywhere)
assert not whole.weight.is_fully_addressable
ag.save(path, whole)
before = open(path, "rb").read()

try:
    ag.save(path, placed(spread))
except ag.SaveError as error:
    assert error.place == "weight" and "process_allgather(tree, tiled=True)" in error.to_fix, error
else:
    raise AssertionError("half of an array was written")
assert open(path, "rb").read() == before and os.listdir(folder).count(f"{me}.safetensors") == 1

ag.save(path, {"weight": process_allgather(placed(spread).weight, tiled=True)})
np.testing.assert_array_equal(ag.load(path)["['weight']"], values)

ag.save(path, whole)
shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), placed(spread))
loaded = ag.load(path, like=shapes)
for mine in loaded.weight.addressable_shards:
    np.testing.assert_array_equal(mine.data, values[mine.index])
assert loaded.weight.sharding == spread and loaded.key.sharding == everywhere
np.testing.assert_array_equal(jax.random.key_data(loaded.key.addressable_data(0)), [0, 3])
print("done", [tuple(shard.data.shape) for shard in loaded.weight.addressable_shards])
"""


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_two_processes_save_and_load(tmp_path: Path) -> None:
    """What every process has whole is written by each; an array of which each has a part is refused, by its path.

    The file that was there stays as it was. Loading gives each device its part, also of shapes with shardings over
    both processes.
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
    assert last_lines == [["done [(2,), (2,)]"]] * 2, "\n".join(error for _, error in told)
    assert [each.returncode for each in processes] == [0, 0]
