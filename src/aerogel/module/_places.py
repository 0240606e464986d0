"""Every place of a tree, with the leaves that stand there: what selections look at."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from ._decide import form_if_node
from ._form import MISSING, put
from ._kinds import Kind, kind_of
from ._late import late_values
from ._paths import Path
from ._steps import home, is_node, leaf_paths, part, parts_below, static_keys, value_at


class _Mark:
    """Stands for one leaf of which neither shape nor dtype is known."""


class Skeleton:
    """A copy of a tree in which each leaf is an object of its own, so that parts of it are told apart by identity.

    Attributes:
        tree: the copy: shapes and dtypes where arrays stand.
        leaves: the positions of the leaves, by the id of what stands for them.
        paths: the paths of the leaves.
    """

    def __init__(self, tree: Any) -> None:
        leaves, structure = jax.tree.flatten(tree)
        self._marks = [_mark_for(leaf) for leaf in leaves]  # kept alive: ids are unique among the living
        self.leaves = {id(mark): i for i, mark in enumerate(self._marks)}
        self.tree = jax.tree.unflatten(structure, self._marks)
        self._whole = tree
        _show_sources(self.tree)

    @functools.cached_property
    def paths(self) -> list[Path]:
        return leaf_paths(self._whole)

    def leaves_below(self, value: Any) -> list[int]:
        """The positions of the leaves in a part of the copy."""
        return [self.leaves[id(leaf)] for leaf in jax.tree.leaves(value) if id(leaf) in self.leaves]


class Place(NamedTuple):
    """One place of a tree.

    Attributes:
        path: how it is reached.
        home: where its data stands: `path`, or what that is tied to.
        value: what stands there; for a place that is a function of another one, what stands at that one.
        part: the same in the skeleton.
        is_static: whether it is structure.
        is_computed: whether it is a function of another place.
        is_leaf: whether nothing is below it.
    """

    path: Path
    home: Path
    value: Any
    part: Any
    is_static: bool = False
    is_computed: bool = False
    is_leaf: bool = False


@dataclass(frozen=True)
class _Tree:
    """A tree, its skeleton and its ties."""

    whole: Any
    copy: Any
    links: dict[Path, tuple[Path, bool]]


def places_of(tree: Any, skeleton: Skeleton) -> Iterator[Place]:
    """All places, outer ones first, in the order of the leaves; tied ones where they are tied to as well."""
    known = _Tree(tree, skeleton.tree, _links(tree))
    pending: list[Place] = [Place((), (), tree, skeleton.tree, is_leaf=not is_node(tree))]
    while pending:
        here = pending.pop()
        yield here
        if here.is_static or here.is_computed:
            continue
        below, copies = [], dict(parts_below(here.part))
        for key, value in parts_below(here.value):
            below += _below(here, key, value, copies, known)
        for key in static_keys(here.value):
            path, its_home = (*here.path, key), (*here.home, key)
            below.append(Place(path, its_home, part(here.value, key), None, is_static=True, is_leaf=True))
        pending += reversed(below)


def _below(here: Place, key: Any, value: Any, copies: dict[Any, Any], tree: "_Tree") -> list[Place]:
    path = (*here.path, key)
    found, computed = _past(path, tree.links)
    if computed:
        return [Place(path, found, value_at(tree.whole, found), value_at(tree.copy, found), is_computed=True)]
    copy = copies.get(key, MISSING)
    if value is MISSING:  # computed by a tie of a module further out, which is not here
        value, copy = part(here.value, key), part(here.part, key)
    if value is MISSING or copy is MISSING:
        return []
    return [Place(path, found, value, copy, is_leaf=not is_node(value))]


def _links(tree: Any) -> "dict[Path, tuple[Path, bool]]":
    """Where each tied place is read from, and whether by a function. Outer ties come before inner ones."""
    links: dict[Path, tuple[Path, bool]] = {}
    pending: list[tuple[Path, Any]] = [((), tree)]
    while pending:
        path, node = pending.pop()
        form = form_if_node(node)
        for tie in () if form is None else form.ties:
            links.setdefault((*path, *tie.place), ((*path, *tie.source), tie.via is not None))
        inside = ((key, value) for key, value in parts_below(node) if kind_of(value) is not Kind.ARRAY)
        pending += [((*path, key), value) for key, value in inside if (*path, key) not in links]
    return links


def _past(path: Path, links: "dict[Path, tuple[Path, bool]]") -> tuple[Path, bool]:
    computed = False
    for depth in range(1, len(path) + 1):
        link = links.get(path[:depth])
        if link is not None:
            found, by_inner = _past((*link[0], *path[depth:]), links)
            return found, computed or link[1] or by_inner
    return path, computed


def _mark_for(leaf: Any) -> Any:
    if kind_of(leaf) is Kind.ARRAY and hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return _Mark()


def _show_sources(skeleton: Any) -> None:
    """Where a place is a function of another, a skeleton shows that one: no function of a user's is called."""
    for path, (_, computed) in _links(skeleton).items():
        if computed:
            node, name = value_at(skeleton, path[:-1]), path[-1].name
            put(node, "_late", late_values(node) | {name: (_itself, value_at(skeleton, home(skeleton, path)[0]))})


def _itself(value: Any) -> Any:
    return value
