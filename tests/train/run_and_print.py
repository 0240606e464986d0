"""A training run that keeps a checkpoint of every step, prints each step that is kept, and is killed from outside."""

import itertools
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import aerogel as ag
from aerogel import nn

ADAM = optax.adam(1e-2)  # one for all runs: what is compiled for one is there for the next


def batches() -> Any:
    """An endless stream, the same in every run."""
    for i in itertools.count():
        yield np.random.default_rng(i).normal(size=(4, 3)).astype(np.float32)


def first_state() -> Any:
    """A model with dropout and statistics, its optimiser, and the key of what is drawn."""
    one, two = jax.random.split(jax.random.key(0))
    model = nn.Sequential(nn.Linear(3, 8, key=one), nn.BatchNorm(8), nn.Dropout(0.5), nn.Linear(8, 1, key=two))
    return {"model": model, "optimizer": ag.Optimizer(ADAM).init(model), "key": jax.random.key(1)}


def step(state: Any, batch: Any) -> Any:
    """One step: the state, and the loss."""
    key, own = jax.random.split(state["key"])

    def loss(model: Any, x: Any) -> Any:
        return jnp.square(model(x, key=own) - 1).mean()

    value, model, optimizer = state["optimizer"].step(loss)(state["model"], batch)
    return {"model": model, "optimizer": optimizer, "key": key}, value


def run(folder: str, last: int, *, backend: Any = "files", report: Any = None) -> Any:
    """The state after `last` steps, from the last checkpoint in `folder` on."""
    with ag.Checkpoints(folder, keep=2, backend=backend) as checkpoints:
        found = checkpoints.restore(first_state())
        state, done = (found.state, found.step) if found else (first_state(), 0)
        remaining = itertools.islice(batches(), done, last)
        running = ag.loop(step, state, ag.prefetch(remaining), first_step=done)
        for _ in running:
            checkpoints.save(running.step, running.state, running.step)
            if report:
                report(running.step)
        return running.state


if __name__ == "__main__":
    run(sys.argv[1], 10**6, report=lambda step: os.write(1, f"{step}\n".encode()))
