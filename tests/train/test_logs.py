"""What a run reports arrives, and a run that goes on leaves one record of each step."""

import importlib
import io
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import aerogel as ag


def test_a_table_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Rows of steps that are done again, and half a row, are dropped; the others stay; columns keep their order."""
    path = tmp_path / "run.csv"
    with ag.CSVLog(path) as log:
        for step in (1, 2, 3):
            log.write(step, {"loss": jnp.array([step, step + 1.0]), "rate": 0.1})
    path.write_text(path.read_text() + "4,0.")
    assert path.read_text().splitlines() == ["step,loss,rate", "1,1.5,0.1", "2,2.5,0.1", "3,3.5,0.1", "4,0."]
    with ag.CSVLog(path) as log:
        log.write(3, {"rate": 0.2, "loss": jnp.float32(0.25)})
        with pytest.raises(ag.UsageError, match="loss, rate"):
            log.write(4, {"loss": 1.0})
    assert path.read_text().splitlines() == ["step,loss,rate", "1,1.5,0.1", "2,2.5,0.1", "3,0.25,0.2"]


def test_a_bar_shows_it_all() -> None:
    """Numbers, steps, throughput and the time that is left; numbers are not read more often than they are shown."""
    now, reads = 0.0, []

    class Read:
        def __array__(self, *_: Any, **__: Any) -> Any:
            reads.append(now)
            return np.asarray(0.5)

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    with ag.Progress(400, per_step=32, unit="images", console=console, clock=lambda: now) as bar:
        for step in range(1, 201):
            now = step / 10
            bar.write(step, {"loss": Read()})
    shown = stream.getvalue()
    assert "loss 0.5" in shown
    assert "200/400" in shown
    assert "320 images/s" in shown
    assert "0:00:20" in shown
    assert 20 < len(reads) <= 81


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("rich.progress", lambda folder: ag.Progress(3)),
        ("tensorboardX", lambda folder: ag.TensorBoardLog(folder)),
        ("orbax.checkpoint", lambda folder: ag.Checkpoints(folder, backend="orbax")),
    ],
    ids=["rich", "tensorboardX", "orbax"],
)
def test_what_is_missing_is_named(package: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package there is one error, which names the extra that brings it."""
    found = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name == package:
            root = name.partition(".")[0]
            raise ModuleNotFoundError(f"No module named {root!r}", name=root)
        return found(name, *rest)

    monkeypatch.setattr(sys.modules["aerogel.train._errors"], "import_module", without)
    with pytest.raises(ag.MissingExtraError, match=r"aerogel\[train\]"):
        make(tmp_path)
