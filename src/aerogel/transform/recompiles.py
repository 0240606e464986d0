"""Why a function was traced again: each trace leaves a record of its arguments, and records are compared by path."""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.module._paths import show_path

from ._errors import TooManyTraces
from ._positions import Position, positions_of

_jax.exclude_from_tracebacks(__file__)

LOGGER = logging.getLogger("aerogel.recompiles")
KEPT = 16  # records per function: a new trace is compared with the nearest of these
SHOWN = 10  # changes that a message lists
ENDINGS = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True)
class Record:
    """What one trace saw: all positions in the arguments, those given by name, and the settings of JAX."""

    parts: dict[str, Position]
    settings: Any
    number: int
    by_name: frozenset[str] = frozenset()

    def changes_to(self, new: "Record") -> list[str]:
        """What is different in `new`, a line for each position."""
        paths = dict.fromkeys((*self.parts, *new.parts))
        different = [path for path in paths if self.parts.get(path) != new.parts.get(path)]
        texts = {path: (_text(self.parts.get(path)), _text(new.parts.get(path))) for path in different}
        # A dict with another key is another structure, which the lines of its items tell better.
        told = {path: (old, now) for path, (old, now) in texts.items() if old != now}
        width = max(map(len, told), default=0)
        lines = [f"{path:<{width}}  {old} -> {now}" for path, (old, now) in told.items()]
        return lines or [f"{path}  another structure of {now}" for path, (_, now) in texts.items()]

    def ways_to(self, new: "Record") -> list[str]:
        """The arguments that are given in another way in `new`, a line for each: for JAX that is another structure."""
        ways = ("by position", "by name")
        names = sorted(self.by_name ^ new.by_name)
        return [f"{name}  {ways[name in self.by_name]} -> {ways[name in new.by_name]}" for name in names]


def _text(part: Position | None) -> str:
    return "nothing" if part is None else part.text


class Traces:
    """The record of one function's traces."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self.explain = False
        self._signature = _jax.signature(function)
        self._records: list[Record] = []
        self._count = 0

    def note(self, args: Any, kwargs: Any) -> None:
        """Is called when the function is traced.

        Raises:
            TooManyTraces: an `assert_max_traces` does not allow it.
        """
        self._count += 1
        new = Record(dict(parts_of(self._named(args, kwargs))), _jax.trace_key(), self._count, frozenset(kwargs))
        earlier, self._records = self._records, [*self._records, new][-KEPT:]
        if earlier:
            level = logging.WARNING if self.explain else logging.INFO
            if LOGGER.isEnabledFor(level):
                LOGGER.log(level, "%s", self._explanation(earlier, new))
        for limit in _limits.get():
            limit.count(self, lambda: "\n".join(self._changes(earlier, new)[0]) if earlier else "")

    def _named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by their names."""
        try:
            bound = None if self._signature is None else self._signature.bind(*args, **kwargs)
        except TypeError:  # the first argument of a static `__call__` is not in what Python 3.11 says of it
            bound = None
        if bound is None:
            return {**{f"args[{i}]": x for i, x in enumerate(args)}, **kwargs}
        named = dict(bound.arguments)
        for parameter in bound.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named

    def _changes(self, earlier: list[Record], new: Record) -> tuple[list[str], Record]:
        def distance(old: Record) -> tuple[int, bool, int]:
            return len(old.changes_to(new)), old.settings != new.settings, len(old.ways_to(new))

        nearest = min(reversed(earlier), key=distance)
        changes = nearest.changes_to(new)
        if len(changes) > SHOWN:
            changes = [*changes[:SHOWN], f"and {len(changes) - SHOWN} more"]
        if changes:
            return changes, nearest
        if nearest.settings != new.settings:
            return ["no argument, but a setting of JAX, a mesh or another context"], nearest
        if nearest.by_name != new.by_name:
            return nearest.ways_to(new), nearest
        return ["no argument: the earlier trace is not kept, or was made for another transformation"], nearest

    def _explanation(self, earlier: list[Record], new: Record) -> str:
        changes, nearest = self._changes(earlier, new)
        lines = "".join(f"\n  {line}" for line in changes)
        since = "" if nearest.number == new.number - 1 else f" since the {_ordinal(nearest.number)} time"
        return f"`{self.name}` is traced for the {_ordinal(new.number)} time; what changed{since}:{lines}"


def _ordinal(n: int) -> str:
    return f"{n}{'th' if n % 100 in (11, 12, 13) else ENDINGS.get(n % 10, 'th')}"


def parts_of(named: dict[str, Any]) -> Iterator[tuple[str, Position]]:
    """All positions in arguments, by their paths, which begin with the arguments' names."""
    for name, value in named.items():
        for path, part in positions_of(value, ()):
            yield show_path(path, name), part


class _Limit:
    """One `assert_max_traces` at work."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[int, int] = {}

    def count(self, traces: Traces, changes: Callable[[], str]) -> None:
        now = self._counts[id(traces)] = self._counts.get(id(traces), 0) + 1
        if now > self._most:
            raise TooManyTraces(function=traces.name, traces=now, allowed=self._most, changes=changes())


_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("aerogel_limits", default=())


@contextmanager
def assert_max_traces(n: int) -> Generator[None]:
    """A block, or as a decorator a function, in which no function of `ag.jit` is traced more than `n` times.

    What was traced before the block costs nothing: put `assert_max_traces(0)` around a loop that was warmed up.
    Traces in other threads do not count.

    Raises:
        TooManyTraces: one is; names the function and what changed in its arguments.
        UsageError: `n` is no number of traces.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> double = ag.jit(lambda x: 2 * x)
    >>> with ag.assert_max_traces(1):
    ...     for _ in range(3):
    ...         y = double(jnp.ones(4))
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        wanted = "how often each function in the block may be traced: with ag.assert_max_traces(1): ..."
        raise UsageError(argument="n", got=n, wanted=wanted, function="assert_max_traces")
    token = _limits.set((*_limits.get(), _Limit(n)))
    try:
        yield
    finally:
        _limits.reset(token)
