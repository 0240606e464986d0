"""The names under which a tree's leaves stand in a file."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from ..._errors import UsageError
from .._holes import reach
from .._module import Module
from .._paths import LeafKey, Path, show_path
from .._ties import ties

Convention = Literal["aerogel", "torch"]
Rename = Mapping[str, str] | Callable[[str], str | None] | None
WHOLE = "value"  # the name of a tree that is one leaf


def leaves_by_path(tree: Any) -> list[tuple[Path, Any]]:
    """All leaves, in order."""
    return jax.tree_util.tree_leaves_with_path(tree)


def name_of(path: Path, convention: Convention) -> str:
    """`layers[0].weight` for Aerogel, `layers.0.weight` for PyTorch."""
    shown = show_path(path) if convention == "aerogel" else ".".join(_steps(path))
    return shown or WHOLE


def _steps(path: Iterable[Any]) -> Iterable[str]:
    for key in path:
        match key:
            case LeafKey(path=inner):
                yield from _steps(inner)
            case GetAttrKey(name=step) | SequenceKey(idx=step) | DictKey(key=step) | FlattenedIndexKey(key=step):
                yield str(step)
            case _:
                yield str(key)


def tied_names(tree: Any, convention: Convention) -> dict[str, tuple[str, str | None]]:
    """Names of places that hold no leaf because they are tied: the leaf's name, and the function that is between."""
    found: dict[str, tuple[str, str | None]] = {}
    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: isinstance(node, Module)):
        for tie in ties(node) if isinstance(node, Module) else ():
            via = None if tie.via is None else getattr(tie.via, "__name__", repr(tie.via))
            for rest, _ in leaves_by_path(reach(node, tie.source)):
                place = name_of((*path, *tie.place, *rest), convention)
                found[place] = name_of((*path, *tie.source, *rest), convention), via
    return found


def followed(aliases: Mapping[str, str]) -> dict[str, str]:
    """The aliases with the names that they lead to in the end; without circles, which a file may have."""
    ends: dict[str, str | None] = {}
    for name in aliases:
        way: dict[str, None] = {}
        while name in aliases and name not in ends and name not in way:
            way[name] = None
            name = aliases[name]
        ends |= dict.fromkeys(way, None if name in way else ends.get(name, name))
    return {name: end for name, end in ends.items() if end is not None}


def renaming(rename: Rename) -> Callable[[str], str | None]:
    """`rename` as a function.

    A mapping goes from patterns to names; in a pattern `*` stands for any text, in a name for what it stood for. The
    first pattern that fits is taken; a name that none fits stays.

    Raises:
        UsageError: a name has more `*` than its pattern.
    """
    if rename is None:
        return lambda name: name
    if not isinstance(rename, Mapping):
        return rename
    rules = [(_compiled(pattern), target.split("*")) for pattern, target in rename.items()]
    for (pattern, target), (_, parts) in zip(rename.items(), rules, strict=True):
        if len(parts) - 1 > pattern.count("*"):
            raise UsageError(argument="rename", got={pattern: target}, wanted="a pattern with as many `*` as its name")

    def renamed(name: str) -> str:
        for pattern, (first, *rest) in rules:
            found = pattern.fullmatch(name)
            if found:
                return first + "".join(text + part for text, part in zip(found.groups(), rest, strict=False))
        return name

    return renamed


def matching(patterns: Mapping[str, Any], name: str) -> Any:
    """The value of the first pattern that fits `name`; None if none does."""
    return next((value for pattern, value in patterns.items() if _compiled(pattern).fullmatch(name)), None)


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def checked_convention(convention: str, function: str) -> None:
    """Refuses what is no convention."""
    if convention not in ("aerogel", "torch"):
        raise UsageError(argument="convention", got=convention, wanted=["aerogel", "torch"], function=function)
