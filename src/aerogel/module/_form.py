"""The form of a node: what is data in it, what is structure, which places are tied. JAX carries it in the treedef.

A form is decided once, when a node is built, and passed on by every transformation: nothing is inferred when a node
is flattened. So a model of `None`s, of shapes or of shardings keeps all of its positions. Forms are interned: equal
ones are one object, and comparing two treedefs compares pointers.
"""

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

from jax.tree_util import GetAttrKey

from ._errors import FieldError
from ._paths import FieldKey, Path, show_path, step_name
from ._values import key_of

put = object.__setattr__
new = object.__new__
MISSING: Any = object()


class _Building:
    """In the place of a form: whoever looks into it would see what changes yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks whether it has these: `inspect`, `copy`
            raise AttributeError(name)
        raise FieldError(
            what="a module has no parts to look at before its `__init__` is over.",
            place="`self` in an `__init__`",
            to_fix="set its attributes, self.x = ..., and do the rest with the finished module",
        )


BUILDING: Any = _Building()  # the form of a module whose `__init__` runs

_CONTENTS = ("slots", "statics", "holes", "foreign", "ties", "frozen", "ordered")

named_by_attribute: set[type] = set()  # containers, whose errors say in which attribute they stand

_interned: WeakValueDictionary[Hashable, "Form"] = WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class Tie:
    """One leaf or subtree in two places: `place` holds no data of its own, it is read from `source`.

    Attributes:
        place: the path without data, from the module that owns both.
        source: the path with the data.
        via: what is read at `place` is `via(source)`; None for the source itself.
    """

    place: Path
    source: Path
    via: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return f"{show_path(self.place)} = {self.text()}"

    def text(self) -> str:
        """The right-hand side of the tie, as code."""
        source = show_path(self.source)
        return source if self.via is None else f"{getattr(self.via, '__name__', repr(self.via))}({source})"

    def within(self, prefix: Path) -> "Tie":
        """The same tie, told from further out."""
        return Tie((*prefix, *self.place), (*prefix, *self.source), self.via)


class Form:
    """Which slots of a node are children, in order, and everything about it that is not data.

    Attributes:
        cls: the class of the node.
        slots: names, indices or dict keys of the children.
        statics: the other slots with their values.
        holes: slots without data, because a module further out ties them to another place.
        foreign: slots that hold another library's node or a named tuple with structure in it, and how that is divided.
        ties: places below this module that are read from another place below it, in the order in which they are filled.
        frozen: leaves that no gradient reaches: the slot, and the path below it as text where it is no leaf itself.
        ordered: all slots, data or not, in the order that an `OrderedDict` gave them.
    """

    __slots__ = ("__weakref__", "_by_key", "_by_name", "_keys", "_read", "cls", *_CONTENTS)

    cls: type
    slots: tuple[Any, ...]
    statics: tuple[tuple[Any, Any], ...]
    holes: tuple[Any, ...]
    foreign: tuple[tuple[Any, Any], ...]
    ties: tuple[Tie, ...]
    frozen: tuple[tuple[Any, str], ...]
    ordered: tuple[Any, ...]
    _by_key: dict[Any, Any]
    _by_name: dict[bool, dict[Any, Any]]
    _keys: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        node_type: type,
        slots: Iterable[Any],
        statics: Iterable[tuple[Any, Any]] = (),
        holes: Iterable[Any] = (),
        foreign: Iterable[tuple[Any, Any]] = (),
        ties: Iterable[Tie] = (),
        frozen: Iterable[tuple[Any, str]] = (),
        ordered: Iterable[Any] = (),
    ) -> "Form":
        """The one form with these contents.

        Raises:
            StructureError: a static value cannot be part of the structure.
        """
        slots, statics, holes = tuple(slots), tuple(statics), tuple(holes)
        foreign, ties, frozen, ordered = tuple(foreign), in_order_of_filling(ties), tuple(frozen), tuple(ordered)
        values = tuple((slot, key_of(value, f"{node_type.__name__}.{slot}")) for slot, value in statics)
        key = (cls, node_type, slots, values, holes, foreign, ties, frozen, ordered)
        with _lock:
            form = _interned.get(key)
            if form is None:
                form = new(cls)
                form.cls, form.slots, form.statics = node_type, slots, statics
                form.holes, form.foreign, form.ties, form.frozen, form.ordered = holes, foreign, ties, frozen, ordered
                form._prepare()
                _interned[key] = form
        return form

    def __repr__(self) -> str:
        """What is not data, as JAX shows it in its own errors: `act=tanh, head.weight = embed.weight`."""
        known = [(show_path([self.entry(slot)]), getattr(value, "__name__", value)) for slot, value in self.statics]
        told = [f"{name}={value}" for name, value in known] + [repr(tie) for tie in self.ties]
        told += [f"{place} is frozen" for place in self.frozen_places]
        return ", ".join(told) or "arrays only"

    @property
    def frozen_places(self) -> list[str]:
        """The paths, from this node, of the leaves that no gradient reaches."""
        return [f"{show_path([self.entry(slot)])}{rest and '.'}{rest}" for slot, rest in self.frozen]

    def _prepare(self) -> None:
        """Whatever makes `read` fast."""

    def read(self, node: Any) -> tuple[Any, ...]:
        """The children as they stand in the node."""
        raise NotImplementedError

    def get(self, node: Any, slot: Any) -> Any:
        """The value of one slot."""
        raise NotImplementedError

    def make(self, values: dict[Any, Any]) -> Any:
        """A node of this form. `values` are its children, and those of its holes that are known."""
        raise NotImplementedError

    def entry(self, slot: Any) -> Any:
        """JAX's key for a slot."""
        raise NotImplementedError

    def told(self, slot: Any) -> Any:
        """The key of a child that JAX tells others."""
        return self.entry(slot)

    def order(self, slots: Iterable[Any]) -> tuple[Any, ...]:
        """Slots in the order in which they are flattened."""
        raise NotImplementedError

    def slot_of(self, key: Any) -> Any:
        """The slot that JAX's key stands for; MISSING if it is none of this node's."""
        try:
            known = self._by_key
        except AttributeError:
            every = (*self.slots, *self.holes, *dict(self.statics))
            known = self._by_key = {key(slot): slot for slot in every for key in (self.entry, self.told)}
        return known.get(key, MISSING)

    @property
    def places(self) -> tuple[Any, ...]:
        """The slots of data and those that are tied elsewhere, in the order of the leaves."""
        return self.order((*self.slots, *self.holes)) if self.holes else self.slots

    @property
    def keys(self) -> tuple[Any, ...]:
        """JAX's keys for `places`."""
        try:
            return self._keys
        except AttributeError:
            self._keys = tuple(map(self.entry, self.places))
            return self._keys

    def key_named(self, name: Any, statics: bool) -> Any:
        """JAX's key for the slot of data, or of structure too, that users write as `name`; None if there is none."""
        try:
            known = self._by_name[statics]
        except AttributeError:
            every = (*self.keys, *(self.entry(slot) for slot, _ in self.statics))
            self._by_name = {False: _by_name(self.keys), True: _by_name(every)}
            known = self._by_name[statics]
        found = known.get(name)
        return known.get(str(name)) if found is None else found

    def replace(self, **changes: Any) -> "Form":
        """The form with other contents."""
        now = {name: getattr(self, name) for name in _CONTENTS}
        return type(self).of(self.cls, **(now | changes))

    def without(self, slot: Any) -> "Form":
        """The form in which `slot` is a hole."""
        return self.replace(
            slots=[s for s in self.slots if s != slot],
            holes=self.order((*self.holes, slot)),
            foreign=[(s, division) for s, division in self.foreign if s != slot],
        )

    def restored(self, slot: Any, division: Any = None) -> "Form":
        """The form in which the hole `slot` is a child again, divided as what stands in it now."""
        foreign = dict(self.foreign) | ({slot: division} if division is not None else {})
        return self.replace(
            slots=self.order((*self.slots, slot)),
            holes=[s for s in self.holes if s != slot],
            foreign=[(s, foreign[s]) for s in self.order(foreign)],
        )


def _by_name(keys: tuple[Any, ...]) -> dict[Any, Any]:
    """Keys by their names, and by these as text; of several that read the same, the first."""
    by_text = {str(step_name(key)): key for key in reversed(keys)}
    return by_text | {step_name(key): key for key in reversed(keys)}


def in_order_of_filling(ties: Iterable[Tie]) -> tuple[Tie, ...]:
    """Ties in the order that depends on nothing but which they are.

    That is by place; but what fills a part of another tie's source, or all of it, comes before that tie. In which
    order somebody tied them is forgotten: else two models with the same ties had two structures.
    """
    pending = sorted(ties, key=lambda tie: [_rank(key) for key in tie.place])
    ordered: list[Tie] = []
    while pending and _has_fed(pending):
        ready = (tie for tie in pending if not any(feeds(other, tie) for other in pending if other is not tie))
        ordered.append(next(ready, pending[0]))  # none is ready where they feed one another
        pending.remove(ordered[-1])
    return (*ordered, *pending)


def feeds(first: Tie, second: Tie) -> bool:
    """Whether `first` fills something in the source of `second`, or something that this is a part of."""
    shorter = min(len(first.place), len(second.source))
    return first.place[:shorter] == second.source[:shorter]


def _has_fed(ties: list[Tie]) -> bool:
    """Whether any tie feeds one of them."""
    places = {tie.place for tie in ties}
    above = {place[:n] for place in places for n in range(len(place) + 1)}
    return any(t.source in above or any(t.source[:n] in places for n in range(len(t.source))) for t in ties)


def _rank(key: Any) -> tuple[bool, int, str]:
    name = step_name(key)
    return (False, name, "") if isinstance(name, int) else (True, 0, str(name))


def always_frozen(cls: type) -> tuple[tuple[str, str], ...]:
    """The attributes of a class that no gradient reaches and that cannot be unfrozen, as marks of a form."""
    return tuple((name, "") for name in getattr(cls, "_constant_fields", ()))


class AttributeForm(Form):
    """The form of a node with attributes: a module or a bound method."""

    __slots__ = ()

    def _prepare(self) -> None:
        if len(self.slots) > 1:
            self._read = attrgetter(*self.slots)
        elif self.slots:
            self._read = _one(self.slots[0])
        else:
            self._read = _nothing

    def read(self, node: Any) -> tuple[Any, ...]:
        return self._read(node)

    def get(self, node: Any, slot: Any) -> Any:
        return getattr(node, slot, MISSING)

    def make(self, values: dict[Any, Any]) -> Any:
        node = new(self.cls)
        for slot, value in values.items():
            put(node, slot, value)
            if type(value) in named_by_attribute:
                put(value, "_where", slot)
        for slot, value in self.statics:
            put(node, slot, value)
        put(node, "_form", self)
        return node

    def entry(self, slot: Any) -> Any:
        return GetAttrKey(slot)

    def told(self, slot: Any) -> Any:
        return FieldKey(slot)

    def order(self, slots: Iterable[Any]) -> tuple[Any, ...]:
        wanted = set(slots)
        return tuple(name for name in self.cls._fields_in_order if name in wanted)


def _one(name: str) -> Callable[[Any], tuple[Any, ...]]:
    read = attrgetter(name)
    return lambda node: (read(node),)


def _nothing(_: Any) -> tuple[Any, ...]:
    return ()
