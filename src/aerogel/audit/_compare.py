"""`--compare`: natural and optimised programs, kept with copies of real arguments, and measured when the run ends.

Functions are not called or traced again: a script's tracing may print, count, or depend on a state that is gone at
the end. Both programs were taken when the script itself traced the function, and run on flat arrays.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aerogel import _jax
from aerogel.compiler.program import Program
from aerogel.compiler.report import Report
from aerogel.transform.optimize import watched

from ._data import Measurement
from ._measure import Sample, copy_arrays, measure, types_of
from ._record import Record

_jax.exclude_from_tracebacks(__file__)

MOST_BYTES = 2**30
MOST_SIGNATURES = 3
MOST_WAITING = 16


@dataclass(frozen=True)
class Traced:
    """One trace of a function: its program before and after, and what was done."""

    natural: Program
    report: Report


class Sampler:
    """Keeps what `--compare` measures at exit.

    At most `MOST_SIGNATURES` calls of each function, and at most `most_bytes` of copied arguments altogether. What is
    beyond is named in the report as not measured.
    """

    def __init__(self, most_bytes: int = MOST_BYTES):
        self.most_bytes = most_bytes
        self.bytes_kept = 0
        self.any_measured = False
        self.samples: dict[int, list[Sample]] = {}
        self._seen: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._thread = threading.local()

    def watched(self, fun: Any, numerics: str, record: Record, tune: bool = False) -> Any:
        """`optimize(fun)`, with each trace's natural program kept beside its report."""

        def note(natural: Program, report: Report) -> None:
            record.add_trace(report)
            self.waiting(record).append(Traced(natural, report))

        return watched(fun, numerics, note, tune)

    def waiting(self, record: Record) -> list[Traced]:
        """Traces of this thread that no call was found for yet, newest last."""
        table = self._thread.__dict__.setdefault("waiting", {})
        found = table.setdefault(id(record), [])
        del found[:-MOST_WAITING]
        return found

    def take(self, record: Record, parameters: Any, flat: Sequence[Any]) -> None:
        """Keeps a copy of the arguments of a call that is about to run, if it is the first of its signature."""
        optimized = parameters["jaxpr"]
        if id(optimized) in self._seen:
            return
        self._seen[id(optimized)] = optimized  # weakly: a program holds the arrays that it closes over
        traced = self.trace_of(record, optimized)
        arguments = types_of(optimized.in_avals)
        signature = (tuple(optimized.in_avals), traced is not None and traced.report.equations)
        if signature in record.signatures:
            return
        record.signatures.add(signature)
        if traced is not None and not traced.report.fired:
            record.measurements.append(Measurement(arguments, "unchanged"))
            return
        reason = self.refusal(record, traced, parameters, flat)
        if traced is None or reason is not None:
            record.measurements.append(Measurement(arguments, "skipped", reason or "its trace was not seen"))
            return
        self.bytes_kept += sum(getattr(x, "nbytes", 0) for x in flat)
        sample = Sample(arguments, traced.natural, optimized, dict(parameters), copy_arrays(flat))
        self.samples.setdefault(id(record), []).append(sample)

    def trace_of(self, record: Record, optimized: Any) -> Traced | None:
        """The newest trace that takes and returns the types of the program that JAX is about to run."""
        waiting = self.waiting(record)
        for traced in reversed(waiting):
            if (traced.natural.in_avals, traced.natural.out_avals) == (optimized.in_avals, optimized.out_avals):
                waiting.remove(traced)
                return traced
        return None

    def refusal(self, record: Record, traced: Traced | None, parameters: Any, flat: Sequence[Any]) -> str | None:
        """Why a call cannot be repeated later; None if it can."""
        effects = parameters["jaxpr"].effects or (traced is not None and traced.natural.effects)
        size = sum(getattr(x, "nbytes", 0) for x in flat)
        if effects:
            return "it prints, calls back to Python or changes state: not run again"
        if len(self.samples.get(id(record), ())) >= MOST_SIGNATURES:
            return f"only the first {MOST_SIGNATURES} signatures of a function are measured"
        if self.bytes_kept + size > self.most_bytes:
            return f"copies of its arguments ({size >> 20} MiB) do not fit into the {self.most_bytes >> 20} MiB kept"
        if not all(hasattr(x, "nbytes") or isinstance(x, (bool, int, float, complex)) for x in flat):
            return "an argument is neither an array nor a number"
        if any(layout is not None for layout in (*parameters["in_layouts"], *parameters["out_layouts"])):
            return "it asks for memory layouts"
        return None

    def measure(self, records: Iterable[Record], run: Callable[[Sample], Measurement] = measure) -> None:
        """Measures all samples and adds the results to their records. Ctrl-C ends it early."""
        for record in records:
            for sample in self.samples.pop(id(record), ()):
                record.measurements.append(run(sample))
                self.any_measured = True

    def notes(self) -> tuple[str, ...]:
        """What a reader must know about the measurements."""
        if not self.any_measured:
            return ()
        return (
            "Median times of both forms run alternately, on copies of the arguments of the first call of each "
            f"signature (at most {MOST_SIGNATURES} per function, {self.most_bytes >> 20} MiB of copies altogether).",
        )
