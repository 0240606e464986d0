"""`where`: which parts of a tree are meant. The one notion of it, for editing, freezing, partitions and gradients.

A `where` is

* a type: all modules, other nodes and leaves that are instances of it, `nn.Linear` or `jax.Array`;
* a path, `"layers[0].bias"`, or a pattern: `"layers.*.bias"` (`*` stands for any part of one step), `"**.weight"`
  (`**` for any number of steps). Between quotes, `"rows['*']"`, they are themselves. A pattern means structure only
  where it fits no data, a type only nodes of others;
* a predicate on the path, as text, and the value of a leaf: `lambda path, x: x.ndim == 2`;
* a function from the tree to parts of it: `lambda model: [layer.bias for layer in model.layers]`. It is given a copy
  with shapes for arrays; `ag.trainable` and `ag.frozen` are such functions;
* a tuple or list of these: any of them;
* None: everything.

A leaf that is tied stands in several places, and is meant if one of them is.
"""

import functools
import glob
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

from .._errors import UsageError
from ._kinds import Kind, kind_of
from ._methods import BoundMethod
from ._paths import Path, outermost, read_steps, show_path, step_name
from ._places import Place, Places, Skeleton, places_of
from ._steps import home, no_path, nodes_below, resolve, value_at


class Class(Protocol):
    """Any class. Checkers take `type` for a function of one argument, and then know no argument of a lambda."""

    def mro(self) -> list[type]: ...


# Two kinds of functions, so that checkers know the arguments of both kinds of lambdas.
Where: TypeAlias = Class | str | Callable[[Any], Any] | Callable[[Any, Any], Any] | Sequence[Any]

Patterns: TypeAlias = frozenset[tuple[str, ...]]  # what the next steps must be: one of these
Pair: TypeAlias = tuple[Path, Path]  # how a part is reached, and where its data stands

_IDEAS = "a type, a path or pattern, a function of (path, value), a function from the tree to parts of it, or several"

_BY_PATH = "name a part by its path, 'layers[0].weight', or by a function, lambda model: model.layers[0].weight"


def check_where(where: Any, argument: str = "where", to_fix: str = _BY_PATH) -> None:
    """Refuses what means no parts in any tree.

    Raises:
        UsageError: `where` is none of the things above; it names the argument by which users know it.
    """
    if isinstance(where, list | tuple):
        for each in where:
            check_where(each, argument, to_fix)
    elif not (where is None or isinstance(where, type | str) or (callable(where) and _takes(where) in (1, 2))):
        got = jax.typeof(where) if isinstance(where, jax.Array | np.ndarray) else where
        raise UsageError(argument=argument, got=got, wanted=_IDEAS, to_fix=to_fix)


def leaf_mask(tree: Any, where: Where | None) -> tuple[bool, ...]:
    """For each leaf, in the order of `jax.tree.leaves(tree)`, whether `where` means it or something around it.

    Raises:
        PathError: a path or pattern fits nothing.
        UsageError: `where` is none of the things above, or a function that returns something else than parts.
    """
    if where is None:
        return (True,) * len(jax.tree.leaves(tree))
    skeleton = Skeleton(tree)
    meant = _leaves_by_function(skeleton, where)
    if meant is not None:
        return tuple(i in meant for i in range(len(skeleton.values)))
    homes = {home for _, home in _reached(tree, where, skeleton)}
    if not skeleton.has_ties:
        return tuple(any(path[:n] in homes for n in range(len(path) + 1)) for path in skeleton.paths)
    meant = {i for home in homes for i in skeleton.leaves_below(value_at(skeleton.tree, home))}
    return tuple(i in meant for i in range(len(skeleton.values)))


def _leaves_by_function(skeleton: Skeleton, where: Any) -> set[int] | None:
    """The positions of the leaves that a function lists, as `trainable` does; None if `where` is something else."""
    if not callable(where) or isinstance(where, type) or _takes(where) != 1:
        return None
    listed = where(skeleton.tree)
    if not isinstance(listed, list) or not all(id(leaf) in skeleton.leaves for leaf in listed):
        return None
    return {skeleton.leaves[id(leaf)] for leaf in listed}


def selected(tree: Any, where: Where | None) -> tuple[Path, ...]:
    """The paths of the parts that are meant, the outermost ones, each once and where its data stands.

    Raises:
        PathError, UsageError: see `leaf_mask`.
    """
    return tuple(dict.fromkeys(home for _, home in reached(tree, where)))


def reached(tree: Any, where: Where | None) -> list[Pair]:
    """The outermost parts that are meant: for each how it is reached, and where its data stands.

    Raises:
        PathError, UsageError: see `leaf_mask`.
    """
    return _reached(tree, where, Skeleton(tree))


def _reached(tree: Any, where: Where | None, skeleton: Skeleton) -> list[Pair]:
    if isinstance(where, str) and not is_pattern(where):
        return _by_path(tree, where)
    pairs = dict(_meant(tree, where, skeleton, functools.cache(lambda: list(places_of(tree, skeleton)))))
    found = [(path, pairs[path]) for path in outermost(pairs)]
    homes = set(outermost(home for _, home in found))
    return [(path, home) for path, home in found if home in homes]


def _meant(tree: Any, where: Any, skeleton: Skeleton, places: Callable[[], list[Place]]) -> Iterator[Pair]:
    if where is None:
        yield (), ()
    elif isinstance(where, list | tuple):
        for each in where:
            yield from _meant(tree, each, skeleton, places)
    elif not skeleton.has_ties and isinstance(where, type) and issubclass(where, jax.Array | np.ndarray):
        yield from ((path, path) for path, value in skeleton.pairs if isinstance(value, where))
    elif isinstance(where, type):
        yield from _by_type(tree, where, skeleton)
    elif isinstance(where, str):
        yield from _by_text(tree, where, skeleton)
    elif callable(where) and _takes(where) == 2 and not skeleton.has_ties:
        yield from ((path, path) for path, value in skeleton.pairs if where(show_path(path), value))
    elif callable(where) and _takes(where) == 2:
        asked = (p for p in places() if p.is_leaf and not p.is_static and id(p.part) in skeleton.leaves)
        yield from ((p.path, p.home) for p in asked if where(show_path(p.path), p.value))
    elif callable(where) and _takes(where) == 1:
        yield from _by_function(where(skeleton.tree), skeleton, places)
    else:
        check_where(where)


def _by_type(tree: Any, cls: type, skeleton: Skeleton) -> list[Pair]:
    places = Places(tree, skeleton, with_parts=False, with_statics=False)
    found = [(p.path, p.home) for p in places if isinstance(p.value, cls)]
    if found:
        return found
    # Another library's layer without arrays, such as its dropout, is structure where it stands by itself.
    others = ((path, node) for path, node in nodes_below(tree) if kind_of(node) is Kind.FOREIGN)
    return [(path, home(tree, path)[0]) for path, node in others if isinstance(node, cls)]


def is_pattern(text: str) -> bool:
    """Whether a text may mean several parts, or none."""
    if "*" not in text and "?" not in text:
        return False
    steps = read_steps(text)
    return steps is None or any("*" in name or "?" in name for name, is_quoted in steps if not is_quoted)


def _by_path(tree: Any, text: str) -> list[Pair]:
    path = resolve(tree, text, statics=True)
    return [(path, home(tree, path)[0])]


def _by_text(tree: Any, text: str, skeleton: Skeleton) -> Iterator[Pair]:
    if not is_pattern(text):
        yield from _by_path(tree, text)
        return
    steps = read_steps(text)
    if steps is None:
        raise no_path(tree, text)
    pattern = tuple(glob.escape(name) if is_quoted else name for name, is_quoted in steps)
    for with_statics in (False, True):
        places = Places(tree, skeleton, with_parts=False, with_statics=with_statics)
        found = list(_fitting(places, places.root, _closed({pattern})))
        if found:
            yield from ((p.path, p.home) for p in found)
            return
    raise no_path(tree, text)


def _fitting(places: Places, here: Place, patterns: Patterns) -> Iterator[Place]:
    """The places from `here` down, in their order, whose steps are those of a pattern. Others are not looked into."""
    if () in patterns:
        yield here
    from_the_end = any(pattern[0].startswith("-") for pattern in patterns if pattern)
    for below in places.below(here) if len(patterns) > (() in patterns) else ():
        name = step_name(below.path[-1])
        rest = _after(patterns, str(name))
        if from_the_end and isinstance(name, int) and isinstance(here.value, list | tuple):
            rest |= _after(patterns, str(name - len(here.value)))
        if below.is_leaf:
            if () in rest:
                yield below
        elif rest:
            yield from _fitting(places, below, rest)


@functools.lru_cache(maxsize=1024)
def _after(patterns: Patterns, name: str) -> Patterns:
    """What the steps after one of that name must be."""
    return _closed(p[p[0] != "**" :] for p in patterns if p and (p[0] == "**" or fnmatchcase(name, p[0])))


def _closed(patterns: Iterable[tuple[str, ...]]) -> Patterns:
    """The patterns, and what is left of them where `**` at their beginning stands for no step."""
    return frozenset(pattern[n:] for pattern in patterns for n in range(_many(pattern) + 1))


def _many(pattern: tuple[str, ...]) -> int:
    """How many steps at the beginning of a pattern may stand for none."""
    return next((n for n, step in enumerate(pattern) if step != "**"), len(pattern))


def _by_function(result: Any, skeleton: Skeleton, places: Callable[[], list[Place]]) -> Iterator[Pair]:
    pending = [result]
    while pending:
        value = pending.pop()
        if id(value) in skeleton.leaves:
            path = skeleton.paths[skeleton.leaves[id(value)]]
            yield path, path
        elif type(value) in (list, dict) and not skeleton.may_hold(type(value)):
            pending += reversed(value if isinstance(value, list) else [*value.values()])
        elif (found := next((p for p in places() if p.part is value and not _is_shared(value)), None)) is not None:
            yield found.path, found.home
        elif isinstance(value, list | tuple):
            pending += reversed(value)
        elif isinstance(value, dict):
            pending += reversed(value.values())
        else:
            raise UsageError(
                argument="where",
                got=value,
                wanted="a function that returns parts of the tree, which hold data",
                to_fix="return the part as it stands in the tree; name structure by its path",
            )


def _is_shared(value: Any) -> bool:
    return value is None or (type(value) is tuple and not value)  # Python has one of each


def _takes(function: Callable[..., Any]) -> int:
    """1 for a function of the tree, 2 for one of path and value, 0 for neither. Defaults are the function's own."""
    if kind_of(function) is Kind.NODE and not isinstance(function, BoundMethod):
        return 0  # a part of the tree, which its own `__call__` would not find
    if type(function) is types.FunctionType and not vars(function):  # a signature of its own, or of what it wraps
        code = function.__code__
        by_position, several = code.co_argcount, bool(code.co_flags & inspect.CO_VARARGS)
        required = by_position - len(function.__defaults__ or ())
        return _number(required, by_position, several)
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    by_position = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in by_position)
    return _number(required, len(by_position), any(p.kind is p.VAR_POSITIONAL for p in given))


def _number(required: int, by_position: int, several: bool) -> int:
    return required if required else 2 if several or by_position > 1 else by_position
