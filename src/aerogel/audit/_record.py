"""What is known about the functions that come from one place in the source. Grows by a report per trace, no more."""

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from aerogel.compiler.report import Report

from ._counted import CountedJit
from ._data import FunctionRow, Measurement
from ._origin import Origin

MOST_TRACES = 1000


@dataclass
class Record:
    """The calls and traces of all jitted functions with one origin: `jax.jit(lambda ...)` in a loop is one record."""

    origin: Origin
    called_from: str = ""
    is_resolved: bool = False
    calls_inside: int = 0
    traces: list[Report] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    signatures: set[Any] = field(default_factory=set)  # that were considered for measurements
    living: "weakref.WeakSet[CountedJit]" = field(default_factory=weakref.WeakSet)
    _calls_of_dead: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def fold(self, calls: int) -> None:
        """Keeps the calls of a jitted function that is about to die."""
        with self._lock:
            self._calls_of_dead += calls

    def add_trace(self, report: Report) -> None:
        """One more trace. A function that is traced without end fills no memory: the first ones are kept."""
        if len(self.traces) < MOST_TRACES:
            self.traces.append(report)

    def row(self) -> FunctionRow:
        """What is known, as data."""
        calls = self._calls_of_dead + sum(jitted.calls for jitted in list(self.living))
        return FunctionRow(
            name=self.origin.name,
            where=self.origin.place,
            called_from=self.called_from,
            calls=max(calls - self.calls_inside, 0),
            calls_inside=self.calls_inside,
            traces=tuple(self.traces),
            measurements=tuple(self.measurements),
        )
