"""What cannot be meant is refused by the parts of the training kit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import aerogel as ag
from aerogel import nn

MODEL = nn.Linear(3, 2, key=jax.random.key(0))
OTHER = nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
REFUSED: dict[str, Callable[[], Any]] = {
    "goal": lambda: ag.EarlyStopping(goal="Min"),  # type: ignore[arg-type]
    "patience": lambda: ag.EarlyStopping(patience=0),
    "stacked losses": lambda: ag.EarlyStopping().update(jnp.ones(3)),
    "period": lambda: ag.LossScale(period=0),
    "decay": lambda: ag.EMA(1.5).init(MODEL),
    "average before init": lambda: ag.EMA().update(MODEL),
    "model of an average before init": lambda: ag.EMA().model(MODEL),
    "average of another model": lambda: ag.EMA().init(MODEL).update(OTHER),
    "average before freezing": lambda: ag.EMA().init(MODEL).update(ag.freeze(MODEL, "bias")),
    "half a step": lambda: ag.loop(lambda s, b: (s, b), 0, [], steps_per_call=2.5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_cannot_be_meant(name: str) -> None:
    """They are told at once, not by what a run does with them."""
    with pytest.raises(ag.UsageError):
        REFUSED[name]()


@pytest.mark.parametrize("text", ["hello\nworld\n", "epoch,loss\n1,2\n", "step,loss\nfirst,2\n"])
def test_files_of_others_are_left_alone(text: str, tmp_path: Path) -> None:
    """A log adds to a table that it knows, and touches nothing else."""
    path = tmp_path / "notes.csv"
    path.write_text(text)
    with pytest.raises(ag.UsageError, match="a table that CSVLog wrote"):
        ag.CSVLog(path).write(3, {"loss": 1.0})
    assert path.read_text() == text


def test_a_large_model_is_shown_by_its_class() -> None:
    """An error about a model does not fill the screen with the beginning of its layers."""
    model = ag.nn.MLP(2, 3, 4, depth=6, key=jax.random.key(0))
    with pytest.raises(ag.UsageError, match=r"got      MLP\(\.\.\. "):
        ag.EMA().update(model)
