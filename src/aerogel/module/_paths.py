"""Positions in a tree: JAX's own key entries, and the one way in which they are written and read."""

import ast
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

Key = GetAttrKey | SequenceKey | DictKey
Path = tuple[Any, ...]

_QUOTED = r"'(?:[^'\\]|\\.)*'" + "|" + r'"(?:[^"\\]|\\.)*"'
_STEP = re.compile(rf"\.?([^.\[\]]+)|\[(?:({_QUOTED})|([^\]]*))\]")


# What is no key of JAX's by its class, other libraries refuse: Orbax does.
class LeafKey(GetAttrKey):
    """Several steps in one entry: the key of a leaf below a node that was flattened all at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(show_path(path))
        self.path = path

    def __str__(self) -> str:
        return "".join(map(str, self.path))

    def __reduce__(self) -> Any:
        return LeafKey, (self.path,)


class FieldKey(GetAttrKey):
    """The key of an attribute, for JAX. Its 0.10 asks all keys for `key` where it tells two nodes apart by them."""

    @property
    def key(self) -> str:
        """The name, as a `DictKey` has it."""
        return self.name


class ItemKey(DictKey):
    """An index into a list in which items before it hold no data of their own: JAX gets no key for those.

    It reads as a `SequenceKey` and is none: of these Orbax builds a list, from 0 and without a gap.
    """

    @property
    def idx(self) -> int:
        """The index, by the name that a `SequenceKey` has for it."""
        return self.key


def one_by_one(path: Path) -> Path:
    """A path of JAX's as the forms tell it: one key for each step, an index for each item."""
    if not {LeafKey, ItemKey} & set(map(type, path)):
        return path
    return tuple(step for key in path for step in _steps(key))


def _steps(key: Any) -> Path:
    if type(key) is LeafKey:
        return one_by_one(key.path)
    return (SequenceKey(key.idx),) if type(key) is ItemKey else (key,)


def show_path(path: Sequence[Any], root: str = "") -> str:
    """`layers[0].weight`, or `model.layers[0].weight` for the root "model"."""
    text = root + "".join(f"[{key.key}]" if isinstance(key, FlattenedIndexKey) else str(key) for key in path)
    return text if root else text.removeprefix(".")


def outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths that lead to no part of what another one leads to, each once, in their order."""
    known = dict.fromkeys(paths)
    lengths = sorted({len(path) for path in known})
    if len(lengths) < 2:
        return list(known)
    return [path for path in known if not any(path[:n] in known for n in lengths if n < len(path))]


def read_path(text: str) -> tuple[Hashable, ...]:
    """The steps of `layers[0].weight` or `layers.0.weight`: names as strings, indices as integers.

    Which kind of step a name is (attribute or dict key) only the tree can tell: see `step_name`.
    """
    steps = read_steps(text) or ()
    return tuple(int(name) if not quoted and re.fullmatch(r"-?\d+", name) else name for name, quoted in steps)


def read_steps(text: str) -> list[tuple[str, bool]] | None:
    """The names in a path or pattern, each with whether it stood between quotes; None for another text."""
    steps = []
    end = 0
    for found in _STEP.finditer(text):
        if found.start() != end:
            return None
        end = found.end()
        name, quoted, index = found.groups()
        if quoted is not None:
            try:
                steps.append((ast.literal_eval(quoted), True))
            except SyntaxError:  # no escape of Python's
                return None
        else:
            steps.append((index if name is None else name, False))
    return steps if end == len(text) else None


def step_name(key: Any) -> Hashable:
    """What `read_path` makes of a key's text."""
    match key:
        case GetAttrKey(name=name):
            return name
        case SequenceKey(idx=index) | FlattenedIndexKey(key=index):
            return index
        case DictKey(key=name):
            return name if isinstance(name, int | str) else repr(name)
        case _:
            return str(key)
