"""Every place of a tree, with the leaves that stand there: what selections look at."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from ._decide import form_if_node
from ._form import MISSING, Form, put
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
        values: the leaves themselves.
    """

    def __init__(self, tree: Any) -> None:
        self.values, self._structure = jax.tree.flatten(tree)
        self._whole = tree

    @functools.cached_property
    def _nodes(self) -> list[tuple[type, Any]]:
        return nodes_of(self._structure)

    @functools.cached_property
    def has_ties(self) -> bool:
        """Whether any place is tied to another one."""
        return any(isinstance(form, Form) and form.ties for _, form in self._nodes)

    def may_hold(self, cls: type) -> bool:
        """Whether an object of exactly that class can be a part of the tree: nodes of others may hold anything."""
        return any(found is cls or (isinstance(form, Form) and form.foreign) for found, form in self._nodes)

    @functools.cached_property
    def paths(self) -> list[Path]:
        return leaf_paths(self._whole)

    @property
    def pairs(self) -> Iterator[tuple[Path, Any]]:
        """The leaves with their paths."""
        return zip(self.paths, self.values, strict=True)

    @functools.cached_property
    def _marks(self) -> list[Any]:  # kept alive: ids are unique among the living
        return [_mark_for(leaf) for leaf in self.values]

    @functools.cached_property
    def leaves(self) -> dict[int, int]:
        return {id(mark): i for i, mark in enumerate(self._marks)}

    @functools.cached_property
    def tree(self) -> Any:
        copy = jax.tree.unflatten(self._structure, self._marks)
        if self.has_ties:
            _show_sources(copy)
        return copy

    def leaves_below(self, value: Any) -> list[int]:
        """The positions of the leaves in a part of the copy."""
        return [self.leaves[id(leaf)] for leaf in jax.tree.leaves(value) if id(leaf) in self.leaves]


class Place(NamedTuple):
    """One place of a tree.

    Attributes:
        path: how it is reached.
        home: where its data stands: `path`, or what that is tied to.
        value: what stands there; for a place that is a function of another one, what stands at that one.
        part: the same in the skeleton; MISSING where it was not asked for.
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


class Places:
    """The places of a tree, found when they are asked for.

    Args:
        tree: any tree.
        skeleton: of the tree.
        with_parts: whether places have a `part`.
        with_statics: whether structure has places too.
    """

    def __init__(self, tree: Any, skeleton: Skeleton, with_parts: bool = True, with_statics: bool = True) -> None:
        self._whole = tree
        self._with_statics = with_statics
        self._copy = skeleton.tree if with_parts else MISSING
        self._links = _links(tree) if skeleton.has_ties else {}

    @property
    def root(self) -> Place:
        """The place of the whole tree."""
        return Place((), (), self._whole, self._copy, is_leaf=not is_node(self._whole))

    def __iter__(self) -> Iterator[Place]:
        pending = [self.root]
        while pending:
            here = pending.pop()
            yield here
            pending += reversed(self.below(here))

    def below(self, here: Place) -> list[Place]:
        """The places of a node's parts, structure last."""
        if here.is_static or here.is_computed or here.is_leaf:
            return []
        below: list[Place] = []
        copies = {} if here.part is MISSING else dict(parts_below(here.part))
        for key, value in parts_below(here.value):
            below += self._of_data(here, key, value, copies)
        for key in static_keys(here.value) if self._with_statics else ():
            path, its_home = (*here.path, key), (*here.home, key)
            below.append(Place(path, its_home, part(here.value, key), None, is_static=True, is_leaf=True))
        return below

    def _of_data(self, here: Place, key: Any, value: Any, copies: dict[Any, Any]) -> list[Place]:
        path = (*here.path, key)
        found, computed = _past(path, self._links) if self._links else (path, False)
        has_copy = here.part is not MISSING
        if computed:
            copy = value_at(self._copy, found) if has_copy else MISSING
            return [Place(path, found, value_at(self._whole, found), copy, is_computed=True)]
        copy = copies.get(key, MISSING)
        if value is MISSING:  # computed by a tie of a module further out, which is not here
            value, copy = part(here.value, key), part(here.part, key) if has_copy else MISSING
        if value is MISSING or (has_copy and copy is MISSING):
            return []
        return [Place(path, found, value, copy, is_leaf=not is_node(value))]


def places_of(tree: Any, skeleton: Skeleton) -> Iterator[Place]:
    """All places, outer ones first, in the order of the leaves; tied ones where they are tied to as well."""
    return iter(Places(tree, skeleton))


def nodes_of(structure: Any) -> list[tuple[type, Any]]:
    """The class and the form, if it is of ours, of each node of a tree: cheaper than to look at what stands there."""
    found, pending = [], [structure]
    while pending:
        each = pending.pop()
        node = each.node_data()
        if node is not None:
            found.append(node)
            pending += each.children()
    return found


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
