"""One of two processes that train a model together, keep checkpoints, and may be killed while one is written.

    python together.py PROCESS PORT FOLDER SHARDING BACKEND LAST KILLED_AT

Prints each step with the bits of its loss.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import aerogel as ag
import aerogel.module.files._save as writing
from aerogel import nn

ADAM = optax.adam(1e-2)
RULES = {"divided": {"**": "x"}, "whole": {}}


def batches(first: int, last: int) -> Any:
    """The batches of some steps."""
    for i in range(first, last):
        yield np.random.default_rng(i).normal(size=(8, 6)).astype(np.float32)


def make() -> Any:
    """All that a run is."""
    one, two = jax.random.split(jax.random.key(0))
    model = nn.Sequential(nn.Linear(6, 8, key=one), nn.BatchNorm(8), nn.Dropout(0.5), nn.Linear(8, 2, key=two))
    return {"model": model, "optimizer": ag.Optimizer(ADAM).init(model), "ema": ag.EMA().init(model), "key": two}


def stepping(mesh: Any, rules: Any) -> Callable[[Any, Any], Any]:
    """The step, which leaves the state where it is."""

    def step(state: Any, batch: Any) -> Any:
        key, own = jax.random.split(state["key"])

        def loss(model: Any, x: Any) -> Any:
            return jnp.square(model(x, key=own) - 1).mean()

        value, model, optimizer = state["optimizer"].step(loss)(state["model"], batch)
        after = {"model": model, "optimizer": optimizer, "ema": state["ema"].update(model), "key": key}
        return ag.shard(after, mesh, rules), value

    return step


def die_in_the_next_file() -> None:
    """Kills this process when it has encoded a few arrays of what it writes next."""
    count, encoded = itertools.count(), writing._own_parts

    def parts(*args: Any) -> Any:
        for part in encoded(*args):
            if next(count) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield part

    writing._own_parts = parts


def main(me: int, port: str, folder: str, sharding: str, backend: Any, last: int, killed_at: int) -> None:
    """Trains to the step `last`, from the last checkpoint on."""
    jax.distributed.initialize(f"localhost:{port}", 2, me)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    rules = RULES[sharding]
    rows = NamedSharding(mesh, PartitionSpec("x"))
    with ag.Checkpoints(folder, keep=2, backend=backend) as checkpoints:
        found = checkpoints.restore(ag.shard(jax.eval_shape(make), mesh, rules))
        state, done = (found.state, found.step) if found else (ag.shard_init(make, mesh, rules), 0)
        running = ag.loop(
            stepping(mesh, rules), state, ag.prefetch(batches(done, last), sharding=rows), first_step=done
        )
        for losses in running:
            os.write(1, f"{running.step} {np.asarray(losses).tobytes().hex()}\n".encode())
            if running.step == killed_at and me == 1:
                if sharding == "whole" or backend == "orbax":
                    os.kill(os.getpid(), signal.SIGKILL)
                die_in_the_next_file()
            assert checkpoints.is_due(running.step)
            checkpoints.save(running.step, running.state, running.step)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:6], int(sys.argv[6]), int(sys.argv[7]))  # type: ignore[arg-type]
