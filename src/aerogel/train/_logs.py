"""Where the numbers of a run go: a table in a file, TensorBoard, a line on the terminal."""

import csv
import io
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from aerogel._errors import UsageError
from aerogel.module.files._replace import replacing

from ._errors import imported


class AbstractLog(ABC):
    """A place for numbers by name, one set for each step that is reported.

    Numbers are scalars, or the stacked results of a call of `ag.loop`, whose mean is meant. To read one, a log waits
    until it is computed: with one report for several steps, the device need not wait for the log.
    """

    @abstractmethod
    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Reports numbers.

        Args:
            step: the number of steps that led to them.
            values: the numbers.
        """

    @abstractmethod
    def close(self) -> None:
        """Finishes the log; nothing can be written after it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CSVLog(AbstractLog):
    """A table with one row for each report: the step, then the numbers that the first report names.

    A run that goes on from a checkpoint goes on in its file: rows of that step and later ones, which the run had
    written before it was stopped, are dropped at its first report. Each row is in the file when `write` returns.

    Args:
        path: the file.

    >>> import pathlib, tempfile
    >>> import aerogel as ag
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.csv"
    >>> with ag.CSVLog(path) as log:
    ...     log.write(1, {"loss": 0.5})
    ...     log.write(2, {"loss": [0.25, 0.75]})
    >>> print(path.read_text())
    step,loss
    1,0.5
    2,0.5
    <BLANKLINE>
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: IO[str] | None = None
        self._names: list[str] = []

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds a row.

        Raises:
            UsageError: the names are others than those of the first row, or the file is no table of CSVLog's.
        """
        file = self._file = self._file or self._opened(step, list(values))
        if set(values) != set(self._names):
            raise UsageError(
                argument="values",
                got=sorted(values),
                wanted=f"values for the columns {', '.join(self._names)}",
                function="CSVLog.write",
                to_fix="report the same names at each step, others to a log of their own",
            )
        csv.writer(file).writerow([step, *(number(values[name]) for name in self._names)])
        file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self, step: int, names: list[str]) -> IO[str]:
        """The file, with what it keeps of an earlier run, for rows to be added."""
        rows: list[list[str]] = []
        if self._path.exists():
            with self._path.open(newline="") as file:
                rows = [row for row in csv.reader(file) if row]
        if rows and (rows[0][0] != "step" or not all(row[0].isdecimal() for row in rows[1:])):
            raise UsageError(
                argument="path",
                got=str(self._path),
                wanted="a new file, or a table that CSVLog wrote",
                function="CSVLog",
                to_fix="give it another path; the file was left as it is",
            )
        self._names = rows[0][1:] if rows else names
        # A process that was killed may have left a part of a row; it is of a step that is done again.
        kept = [row for row in rows[1:] if len(row) == len(rows[0]) and int(row[0]) < step]
        text = io.StringIO(newline="")
        csv.writer(text).writerows([["step", *self._names], *kept])
        with replacing(self._path) as file:
            file.write(text.getvalue().encode())
        return self._path.open("a", newline="")


class TensorBoardLog(AbstractLog):
    """Numbers for TensorBoard, one curve for each name, in a file of tensorboardX's for each run and each going on.

    A run that goes on from a checkpoint goes on in its folder: TensorBoard shows no more of an earlier file than what
    stands before the first report of a later one. The points are on the disk when `write` returns.

    Args:
        folder: where TensorBoard looks for the run.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._board = imported("tensorboardX", "ag.TensorBoardLog")
        self._folder = os.path.abspath(os.fsdecode(folder))
        self._records: Any = None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds a point to each curve."""
        numbers = {name: number(value) for name, value in values.items()}
        if self._records is None:
            self._records = self._opened(step)
        for name, value in numbers.items():
            self._add(step, summary=self._board.summary.scalar(name, value))
        self._records.flush()

    def close(self) -> None:
        if self._records is not None:
            self._records.close()

    def _opened(self, step: int) -> Any:
        """A new file, last by its name, whose beginning says that what others have from `step` on is done again.

        Not `SummaryWriter`: what it is given waits in a queue, up to two minutes, and is lost where a run is killed.
        """
        os.makedirs(self._folder, exist_ok=True)
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9:010d}.{socket.gethostname()}.{now}"
        self._records = self._board.RecordWriter(os.path.join(self._folder, name))
        self._add(0, file_version="brain.Event:2")
        self._add(step, session_log={"status": "START"})
        return self._records

    def _add(self, step: int, **what: Any) -> None:
        event = self._board.proto.event_pb2.Event(step=step, wall_time=time.time(), **what)
        self._records.write(event.SerializeToString())


def number(value: Any) -> float:
    """The mean of what was reported, once it is computed."""
    return float(np.mean(np.asarray(value, np.float64)))
