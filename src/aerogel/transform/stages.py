"""What `lower` and `trace` return: JAX's stages, and around them, where it is needed, the way that calls go too."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aerogel import _jax

from ._donation import State
from ._errors import ArgumentsError
from ._split import Split, divider, joined
from .recompiles import Record, parts_of

_jax.exclude_from_tracebacks(__file__)

_OF_ARGUMENTS = ("args_info", "in_avals", "input_shardings", "input_formats")
_OF_RESULT = ("out_info", "out_avals", "output_shardings", "output_formats")


@dataclass(frozen=True)
class Way:
    """How a call gets to what was compiled ahead of time.

    Attributes:
        function: the user's.
        first: the callable itself, if its arrays are an argument.
        divide: divides arguments with something else than arrays in them.
        names: of the parameters that are not static, in their order.
        record: what `lower` or `trace` was given.
    """

    function: str
    first: tuple[Any, ...]
    divide: Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]
    names: tuple[str, ...]
    record: Record

    def named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by their names."""
        names = (*self.names, *(f"args[{i}]" for i in range(len(self.names), len(args))))
        return dict(zip(names, args, strict=False)) | kwargs


def way_to(f: Any, first: tuple[Any, ...], static: State, args: Any, kwargs: Any) -> Way:
    """How what is compiled for these arguments will be called: without those that are static."""
    numbers = {i - len(first) if i >= 0 else i + len(args) for i in static[0]}
    known = _jax.signature(f)
    parameters = [] if known is None else list(known.parameters.values())
    by_position = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = tuple(name for i, name in enumerate(by_position) if i not in numbers)
    way = Way(getattr(f, "__name__", type(f).__name__), first, divider(((), ())), names, Record({}, None, 0))
    given = way.named(
        [x for i, x in enumerate(args) if i not in numbers],
        {name: x for name, x in kwargs.items() if name not in static[1]},
    )
    return replace(way, record=Record(dict(parts_of(given)), None, 0))


def stage_of(stage: Any, way: Way, is_divided: bool) -> Any:
    """A stage that takes and shows what the user's function takes and returns; JAX's own stage if that does."""
    root = stage.out_tree.node_data()
    returns_split = root is not None and root[0] is Split
    return Stage(stage, way) if way.first or is_divided or returns_split else stage


class Stage:
    """A stage of JAX's (`Traced`, `Lowered` or `Compiled`) for arguments or results that hold more than arrays.

    Trees of arguments and results are those of the user's function. All else is JAX's: its methods, the program, and
    `in_tree` and `out_tree`, which are about what JAX got.
    """

    __slots__ = ("_stage", "_way")

    def __init__(self, stage: Any, way: Way) -> None:
        self._stage = stage
        self._way = way

    def lower(self, *args: Any, **kwargs: Any) -> "Stage":
        """The next stage of a traced program."""
        return Stage(self._stage.lower(*args, **kwargs), self._way)

    def compile(self, *args: Any, **kwargs: Any) -> "Stage":
        """The next stage of a lowered program."""
        return Stage(self._stage.compile(*args, **kwargs), self._way)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a compiled program. Arguments that are static by position or name are left out, as in JAX.

        Raises:
            ArgumentsError: it was compiled for other types of arrays, or for other values that are no arrays.
        """
        way = self._way
        divided, named = way.divide(args, kwargs)
        try:
            return joined(self._stage(*way.first, *divided, **named))
        except TypeError:
            now = Record(dict(parts_of(way.named(args, kwargs))), None, 0)
            changes = way.record.changes_to(now)
            if not changes:
                raise
        raise ArgumentsError(function=way.function, changes="\n".join(changes))

    def __getattr__(self, name: str) -> Any:
        if name in Stage.__slots__:  # while it is copied, say
            raise AttributeError(name)
        found = getattr(self._stage, name)
        if name in _OF_RESULT:
            return joined(found)
        if name in _OF_ARGUMENTS:
            args, kwargs = found
            whole = map(joined, args[len(self._way.first) :])
            return tuple(whole), {key: joined(value) for key, value in kwargs.items()}
        return found

    def __repr__(self) -> str:
        return f"{type(self._stage).__name__}({self._way.function})"
