"""A run that is stopped anywhere goes on as if it had not been."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from train.run_and_print import first_state, run

ROOT = Path(__file__).parents[2]


def bits(tree: Any) -> list[bytes]:
    """All arrays of a tree, keys too, as they are."""
    leaves = jax.tree.leaves(tree)
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x).tobytes()
        for x in leaves
    ]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The state after six steps of a run that nobody stops."""
    return bits(run(str(tmp_path_factory.mktemp("whole")), 6))


@pytest.mark.parametrize("backend", ["files", "orbax"])
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, wanted: Any, backend: str) -> None:
    """Parameters, moments, statistics and keys are those of a run in one piece; the last two checkpoints are there."""
    run(str(tmp_path), 4, backend=backend)
    assert ag.Checkpoints(tmp_path, backend=backend).steps == (3, 4)
    state = run(str(tmp_path), 6, backend=backend)
    assert jax.tree.structure(state["model"]) == jax.tree.structure(first_state()["model"])
    assert bits(state) == wanted
    assert bits(state) != bits(first_state())


def test_killed_and_taken_up(tmp_path: Path, wanted: Any) -> None:
    """A process killed in the middle of it all loses nothing that it said was kept, and leaves nothing broken."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, str(Path(__file__).with_name("run_and_print.py")), str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in process.stdout]
    assert seen[:3] == [1, 2, 3]
    (tmp_path / ".aerogel-0.tmp").write_bytes(b"what a process leaves that is killed while it writes")
    checkpoints = ag.Checkpoints(tmp_path)
    assert checkpoints.steps[-1] >= seen[-1]
    for step in checkpoints.steps:
        found = checkpoints.restore(first_state(), step)
        assert found is not None
        assert found.position == found.step == step
    last = checkpoints.steps[-1]
    again = tmp_path / "again"
    assert list(tmp_path.glob(".*"))  # whoever only reads leaves it there: it may be being written
    assert bits(run(str(tmp_path), last + 2)) == bits(run(str(again), last + 2))
    assert not list(tmp_path.glob(".*"))


def test_positions_and_numbers(tmp_path: Path) -> None:
    """Positions come back as they were, bytes too, and leaves as what they are in `like`, shapes included."""
    state = {"w": jnp.ones((2, 3), jnp.bfloat16), "n": 3, "x": np.arange(3), "f": jnp.tanh, "key": jax.random.key(5)}
    for backend in ("files", "orbax"):
        with ag.Checkpoints(tmp_path / backend, backend=backend) as checkpoints:
            assert checkpoints.restore(state) is None
            for step, position in enumerate((None, {"next": [1, 2]}, b"\x00\xff"), 1):
                checkpoints.save(step, {**state, "n": step}, position)
            for step, position in enumerate((None, {"next": [1, 2]}, b"\x00\xff"), 1):
                found = checkpoints.restore({**state, "n": 0}, step)
                assert found is not None
                assert (found.step, found.position, found.state["n"]) == (step, position, step)
            assert found.state["f"] is jnp.tanh
            assert type(found.state["n"]) is int
            assert type(found.state["x"]) is np.ndarray
            for name in ("w", "x", "key"):
                assert found.state[name].dtype == state[name].dtype
                assert bits(found.state[name]) == bits(state[name])


def test_sharded_states(tmp_path: Path) -> None:
    """Each array comes back where `like` has it: another mesh than the one it was saved from."""

    def on(count: int) -> Any:
        mesh = jax.make_mesh((count,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:count])
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    state = jax.device_put(jnp.arange(16.0), on(8))
    for backend in ("files", "orbax"):
        with ag.Checkpoints(tmp_path / backend, backend=backend) as checkpoints:
            checkpoints.save(1, [state])
            like = jax.ShapeDtypeStruct((16,), jnp.float32, sharding=on(4))
            found = checkpoints.restore([like])
            assert found is not None
            assert found.state[0].sharding == on(4)
            assert found.state[0].tolist() == state.tolist()


def test_keys_go_to_shapes(tmp_path: Path) -> None:
    """Keys, one or many, of any kind, come back where a shape has them: nothing has to be made to be replaced."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    keys = {"one": jax.random.key(3), "many": jax.random.split(jax.random.key(5, impl="rbg"), 8)}
    places = {"one": jax.sharding.PartitionSpec(), "many": jax.sharding.PartitionSpec("x")}
    for backend in ("files", "orbax"):
        with ag.Checkpoints(tmp_path / backend, backend=backend) as checkpoints:
            checkpoints.save(1, keys)
            for shardings in (None, jax.tree.map(lambda spec: jax.sharding.NamedSharding(mesh, spec), places)):
                like: Any = jax.eval_shape(lambda: keys)
                if shardings:
                    like = {k: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=shardings[k]) for k, v in like.items()}
                found = checkpoints.restore(like)
                assert found is not None
                assert bits(found.state) == bits(keys)
                assert {k: v.dtype for k, v in found.state.items()} == {k: v.dtype for k, v in keys.items()}
                if shardings:
                    assert all(v.sharding.is_equivalent_to(shardings[k], v.ndim) for k, v in found.state.items())


def test_mistakes_are_told(tmp_path: Path) -> None:
    """A step that goes back, one that is not there, a tree that does not fit, arguments that mean nothing."""
    checkpoints = ag.Checkpoints(tmp_path, every=10)
    assert [checkpoints.is_due(step) for step in (9, 10)] == [False, True]
    checkpoints.save(12, {"w": jnp.ones(3)})
    assert [checkpoints.is_due(step) for step in (12, 21, 22)] == [False, False, True]
    with pytest.raises(ag.UsageError, match="after 12"):
        checkpoints.save(12, {"w": jnp.ones(3)})
    with pytest.raises(ag.UsageError, match="step=12"):
        checkpoints.restore({"w": jnp.ones(3)}, 11)
    with pytest.raises(ag.MismatchError):
        checkpoints.restore({"w": jnp.ones(4)})
    for wrong in ({"keep": 0}, {"every": 0}, {"backend": "file"}):
        with pytest.raises(ag.UsageError, match=next(iter(wrong))):
            ag.Checkpoints(tmp_path, **wrong)
