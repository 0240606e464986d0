"""What other packages read and write: events of TensorBoard's, datasets of grain's."""

from pathlib import Path
from typing import Any

import grain
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX import proto

import aerogel as ag


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    """Each number is a point of its curve, at its step."""
    with ag.TensorBoardLog(tmp_path) as log:
        log.write(3, {"loss": jnp.array([0.25, 0.75]), "rate": 0.125})
    (path,) = tmp_path.iterdir()
    data, points = path.read_bytes(), []
    while data:  # a record: its length in 8 bytes, a checksum of 4, the event, another checksum
        length = int.from_bytes(data[:8], "little")
        event = proto.event_pb2.Event.FromString(data[12 : 12 + length])
        points += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    assert points == [(3, "loss", 0.5), (3, "rate", 0.125)]


def loader() -> Any:
    """A loader of grain's oldest kind, whose positions are bytes."""
    source = grain.sources.RangeDataSource(0, 20, 1)
    sampler = grain.samplers.IndexSampler(20, shuffle=True, seed=1, num_epochs=1)
    return grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.transforms.Batch(4)])


DATASET = grain.MapDataset.range(20).shuffle(seed=1).map(np.float32).batch(4)


@pytest.mark.parametrize("make", [lambda: DATASET, DATASET.to_iter_dataset, loader], ids=["map", "iter", "loader"])
def test_a_grain_dataset_goes_on_where_it_was(make: Any, tmp_path: Path) -> None:
    """Stopped after three batches, with more of them read ahead, and taken up from a checkpoint: none is lost."""

    def step(total: Any, batch: Any) -> Any:
        return total + batch.sum(), batch

    whole = [out for outs in ag.loop(step, jnp.float32(0), make()) for out in outs.tolist()]
    checkpoints, running = ag.Checkpoints(tmp_path), ag.loop(step, jnp.float32(0), ag.prefetch(make()))
    seen = [out for _, outs in zip(range(3), running, strict=False) for out in outs.tolist()]
    checkpoints.save(running.step, running.state, running.position)
    found = checkpoints.restore(jnp.float32(0))
    assert found is not None
    rest = iter(make())
    rest.set_state(found.position)
    again = ag.loop(step, found.state, ag.prefetch(rest), first_step=found.step)
    seen += [out for outs in again for out in outs.tolist()]
    assert sorted(x for out in whole for x in out) == list(range(20))
    assert seen == whole
    assert (again.step, float(again.state)) == (5, 190)
