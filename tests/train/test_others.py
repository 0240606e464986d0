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
    assert points_in(tmp_path) == [(3, "loss", 0.5), (3, "rate", 0.125)]


def points_in(folder: Path) -> list[tuple[int, str, float]]:
    """What TensorBoard shows of a folder: a file that begins with a start ends what others have from its step on."""
    points: list[tuple[int, str, float]] = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:  # a record: its length in 8 bytes, a checksum of 4, the event, another checksum
            length = int.from_bytes(data[:8], "little")
            event = proto.event_pb2.Event.FromString(data[12 : 12 + length])
            if event.session_log.status == proto.event_pb2.SessionLog.START:
                points = [point for point in points if point[0] < event.step]
            points += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            data = data[16 + length :]
    return points


def test_curves_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    """A run that is killed, and goes on before what it reported last: each step stands there once, and none is missing.

    Nothing closes the first log: what it was given is in the file at once.
    """
    killed = ag.TensorBoardLog(tmp_path)
    for step in (1, 2, 3, 4):
        killed.write(step, {"loss": float(step)})
        assert points_in(tmp_path)[-1] == (step, "loss", float(step))
    with ag.TensorBoardLog(tmp_path) as log:
        for step in (3, 4, 5):
            log.write(step, {"loss": 10.0 * step})
    assert points_in(tmp_path) == [(1, "loss", 1.0), (2, "loss", 2.0)] + [(s, "loss", 10.0 * s) for s in (3, 4, 5)]
    killed.close()


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
