"""`Progress`: a line on the terminal that says how far a run is, how fast, and how long it will take."""

from collections.abc import Mapping
from typing import Any

from ._errors import imported
from ._logs import AbstractLog, number

SHOWN_PER_SECOND = 4


class Progress(AbstractLog):
    """A bar with the numbers that were reported last, the throughput and the time that is left; drawn by Rich.

    Numbers are read a few times a second only, so that a report costs next to nothing and waits for no result.

    Args:
        total: the number of steps of the run; None where nobody knows.
        first_step: how many were done before, where a run is taken up again.
        per_step: how many things a step does, for the throughput: the size of a batch.
        unit: what these are called.
        console: where to draw; Rich's own choice by default.
        clock: a function that returns the time in seconds; by default Rich's.

    Raises:
        MissingExtraError: Rich is not installed.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        first_step: int = 0,
        per_step: float = 1,
        unit: str = "steps",
        console: Any = None,
        clock: Any = None,
    ) -> None:
        bar = imported("rich.progress", "ag.Progress")
        columns = (
            bar.TextColumn("{task.fields[values]}"),
            bar.BarColumn(),
            bar.MofNCompleteColumn(),
            bar.TextColumn("{task.fields[rate]}"),
            bar.TimeRemainingColumn(),
        )
        self._bar = bar.Progress(*columns, console=console, get_time=clock, refresh_per_second=SHOWN_PER_SECOND)
        self._task = self._bar.add_task("", total=total, completed=first_step, values="", rate="")
        self._per_step, self._unit = per_step, unit
        self._waiting: Mapping[str, Any] = {}
        self._shown_at = float("-inf")
        self._bar.start()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Moves the bar."""
        self._waiting = values
        self._bar.update(self._task, completed=step)
        if self._bar.get_time() - self._shown_at >= 1 / SHOWN_PER_SECOND:
            self._show()

    def close(self) -> None:
        self._show()
        self._bar.stop()

    def _show(self) -> None:
        self._shown_at = self._bar.get_time()
        values = "  ".join(f"{name} {number(value):.4g}" for name, value in self._waiting.items())
        speed = self._bar.tasks[0].speed
        rate = f"{speed * self._per_step:.4g} {self._unit}/s" if speed else ""
        self._bar.update(self._task, values=values, rate=rate)
