"""Assignments to finished parts of a module whose own `__init__` runs: `self.head.weight = self.embed.weight`.

A finished module does not change. So the part is copied with the change, and the copy takes its place in the module
that is being built, wherever that holds it. Nobody else sees a change: what was passed to `__init__` stays as it was.
"""

import functools
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from ._decide import find_ties, form_if_node, form_of, held_by
from ._edit import changed, check_changed
from ._errors import FieldError, TieError
from ._exchange import Exchange, containers_in, is_part, parts_in
from ._form import BUILDING, MISSING, put
from ._holes import copied
from ._kinds import Kind, kind_of
from ._paths import Path, outermost, show_path
from ._steps import home, parts_below, value_at, with_parts
from ._ties import tied_form


@dataclass(frozen=True)
class Construction:
    """A module whose `__init__` runs in this thread.

    Attributes:
        owner: the module.
        borrowed: the ids of the lists and dicts that it was called with.
    """

    owner: Any
    borrowed: set[int]

    def exchange(self, replace: Any) -> None:
        """Puts other parts into what the owner holds."""
        exchange = Exchange(replace, self.borrowed)
        for name, old in held_by(self.owner):
            new = exchange.of(old)
            if new is not old:
                put(self.owner, name, new)


@dataclass
class Amended:
    """What became of parts of a module that is being built. The module keeps it until its `__init__` ends.

    Attributes:
        construction: of the module.
        before: the new parts by their ids, each with what it was made of.
        assigned: the values that were assigned, as they stand now.
    """

    construction: Construction
    before: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    assigned: list[Any] = field(default_factory=list)

    def note(self, new: Any, old: Any) -> None:
        """Remembers that `new` was made of `old`, or of what that was made of."""
        self.before[id(new)] = (new, self.before.get(id(old), (old, old))[1])


def running(call: types.CodeType) -> Construction | None:
    """The innermost construction in this thread; None if there is none, or if its `__init__` is over.

    Args:
        call: the code that makes a module, in a frame with `module`, `args` and `kwargs`. To look for it on the stack
            costs nothing where nothing goes wrong; a list of what is being built would cost every construction.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not call:
        frame = frame.f_back
    if frame is None:
        return None
    known = frame.f_locals
    owner = known.get("module")
    if getattr(owner, "_form", None) is not BUILDING:
        return None
    return Construction(owner, containers_in((*known["args"], *known["kwargs"].values())))


def assign(construction: Construction, part: Any, name: str, value: Any) -> bool:
    """Gives the module that is being built a copy of `part` in which `name` is `value`: what `ag.at(part)` would make.

    Returns:
        whether the module holds the part. If not, nothing was done.

    Raises:
        FieldError: the value is a module that is not finished.
        TieError: the place is a function of another one, to which it is tied.
    """
    owner, seen = construction.owner, set()
    if not any(_paths_to(each, part) for _, whole in held_by(owner) for each in parts_in(whole, seen)):
        return False
    if getattr(value, "_form", None) is BUILDING:
        raise FieldError(
            what="a module that is not finished cannot stand in one that is.",
            place=f"{type(part).__name__}.{name}",
            to_fix="assign it when its `__init__` is over, or leave it out: methods have `self`",
        )
    amended = getattr(owner, "_shadow", None) or Amended(construction)
    construction.exchange(_Assignment(part, name, value, amended).replaced)
    put(owner, "_shadow", amended)
    type(owner)._is_finished = _never  # from now on `settle` is called
    return True


def settle(owner: Any) -> None:
    """At the end of an `__init__`: finds the ties that assignments made inside parts, and checks what they changed.

    Ties between parts are found where all ties are, when it is decided what is data.
    """
    amended = getattr(owner, "_shadow", None)
    if amended is None:
        return
    put(owner, "_shadow", None)
    amended.construction.exchange(_Ties(amended).tied_part)
    put(owner, "_form", None)  # checks may not assign
    done, seen = {id(value) for value in amended.assigned}, set()
    for name, value in held_by(owner):
        for part in parts_in(value, seen):
            new, old = amended.before.get(id(part), (None, None))
            if new is not None:
                what = "`__init__` of {} assigned to a part of `{}`"
                check_changed(new, old, done, functools.partial(what.format, type(owner).__name__, name))
    put(owner, "_form", BUILDING)


def _never(_: Any) -> bool:
    return False


def _paths_to(node: Any, part: Any) -> list[Path]:
    """Where `part` itself stands in a finished node."""
    found: list[Path] = []
    pending: list[tuple[Path, Any]] = [((), node)]
    while pending:
        path, value = pending.pop()
        if value is part:
            found.append(path)
        elif _can_hold(value):
            pending += [((*path, key), inner) for key, inner in parts_below(value)]
    return found


class _Assignment:
    """One assignment.

    Attributes:
        part: the part as it is.
        new: the part with the change.
        key: of what was assigned.
        home: where in the part its data stands.
        amended: learns what was made of what.
    """

    def __init__(self, part: Any, name: str, value: Any, amended: Amended) -> None:
        self.part = part
        self.key = GetAttrKey(name)
        self.home, is_computed = home(part, (self.key,))
        if is_computed:
            raise _computed(f"{type(part).__name__}.{name}", self.home)
        self.new = changed(part, {self.home: value})
        self.amended = amended
        amended.assigned.append(value_at(self.new, self.home))
        amended.note(self.new, part)

    def replaced(self, node: Any) -> Any:
        """The node with the changed part in all places of the part; the node itself if there is none."""
        changes = dict(self._change(node, path) for path in _paths_to(node, self.part))
        if not changes or () in changes:
            return changes.get((), node)
        new = changed(node, {path: changes[path] for path in outermost(changes)}, convert=False)
        self.amended.note(new, node)
        return new

    def _change(self, node: Any, path: Path) -> tuple[Path, Any]:
        """What to put where in a node that has the part at a path: the changed part, unless a tie leads elsewhere."""
        holder, computed = home(node, path)
        place, by_function = home(node, (*holder, self.key))
        if computed or by_function:
            raise _computed(show_path((*path, self.key)), place)
        if place == (*holder, *self.home) and value_at(node, holder) is self.part:
            return holder, self.new
        return place, value_at(self.new, self.home)


class _Ties:
    """Finds what assignments made the same in two places of one finished part."""

    def __init__(self, amended: Amended) -> None:
        self.amended = amended
        self.shared = set[int]()
        for value in amended.assigned:
            self.shared |= {id(leaf) for leaf in jax.tree.leaves(value)} | {id(each) for each in _nodes_in(value)}
        self._known: dict[int, tuple[Any, Any]] = {}

    def tied_part(self, part: Any) -> Any:
        """The part with its new ties; the part itself if no assignment changed it."""
        _, old = self.amended.before.get(id(part), (part, part))
        new = self._tied(part, old)
        if new is not part:
            self.amended.note(new, part)
        return new

    def _tied(self, node: Any, old: Any) -> Any:
        if node is old or node is MISSING or not _can_hold(node):
            return node
        if id(node) not in self._known:
            self._known[id(node)] = (node, self._with_ties(node, old))
        return self._known[id(node)][1]

    def _with_ties(self, node: Any, old: Any) -> Any:
        before = dict(parts_below(old)) if _can_hold(old) else {}
        parts = {key: (value, self._tied(value, before.get(key, MISSING))) for key, value in parts_below(node)}
        new = {key: tied for key, (value, tied) in parts.items() if tied is not value}
        node = with_parts(node, new) if new else node
        return self._with_own_ties(node) if kind_of(node) is Kind.NODE and hasattr(node, "_fields_in_order") else node

    def _with_own_ties(self, module: Any) -> Any:
        form = form_of(module)
        new = [tie for tie in find_ties(module, form) if id(value_at(module, tie.place)) in self.shared]
        # The values are there, and the same: only the form changes, as where ties are found in a new module.
        return copied(module, form, functools.reduce(tied_form, new, form)) if new else module


def _can_hold(value: Any) -> bool:
    return is_part(value) or kind_of(value) in (Kind.TUPLE, Kind.RECORD)


def _nodes_in(value: Any) -> list[Any]:
    found, pending = [], [value]
    while pending:
        node = pending.pop()
        if form_if_node(node) is not None:
            found.append(node)
            pending += [inner for _, inner in parts_below(node) if inner is not MISSING]
    return found


def _computed(place: str, source: Path) -> TieError:
    return TieError(
        what="this place is a function of another one, to which it is tied.",
        place=place,
        to_fix=f"assign to {show_path(source)}, or end the tie first: ag.untie",
    )
