"""Changed copies of trees: what is data is decided anew where something was put, and nowhere else."""

from collections.abc import Callable
from typing import Any

import jax

from ._decide import division_of, form_if_node
from ._form import MISSING, Form, Tie
from ._freeze import UNTOUCHED, freeze, is_data
from ._holes import closed, copied, fill, implanted, reach
from ._kinds import Kind, kind_of
from ._paths import Path, show_path
from ._steps import is_node, part, parts_below, with_parts
from ._stop import stopped

Changes = dict[Path, Any]


def edited(tree: Any, changes: Changes) -> Any:
    """The tree with other parts at some paths. `__check_init__` runs once, on every module that is not what it was.

    What stands in a place of structure, or of an array or a module, may become either. Where a transformation has put
    something else in the place of a leaf (`None`, a label), the place stays a leaf. A tie stays if what was put at its
    second place, or around it, reads the same there, and ends otherwise; it ends too if its source is gone. Then
    its second place has the value that it had.

    Args:
        tree: any pytree.
        changes: new parts by the paths where data stands (`home`); no path is inside another.
    """
    if not changes:
        return tree
    new = changed(tree, changes)

    def why() -> str:
        places = ", ".join(show_path(path) for path in list(changes)[:3]) + (", ..." if len(changes) > 3 else "")
        return f"an edit changed {places or 'it'}"

    check_changed(new, tree, {id(value) for value in changes.values()}, why)
    return new


def changed(node: Any, changes: Changes, convert: bool = True) -> Any:
    """As `edited`, and nothing is checked.

    Args:
        node: any pytree.
        changes: see `edited`.
        convert: whether the fields' converters are called.
    """
    if () in changes:
        return changes[()]
    below: dict[Any, Changes] = {}
    for path, value in changes.items():
        below.setdefault(path[0], {})[path[1:]] = value
    parts = {
        key: inner[()] if () in inner else changed(part(node, key), inner, convert) for key, inner in below.items()
    }
    if kind_of(node) is not Kind.NODE:
        return with_parts(node, parts)
    form = form_if_node(node)
    assert form is not None, "it is a node of ours"
    values = {form.slot_of(key): value for key, value in parts.items()}
    put_here = {form.slot_of(key) for key, inner in below.items() if () in inner}
    if not form.ties and _fits(node, form, values, put_here if convert else set()):
        return copied(node, form, form, values)
    return _Edit(node, form, put_here, changes, convert).of(values)


def _fits(node: Any, form: Form, values: dict[Any, Any], to_convert: set[Any]) -> bool:
    """Whether there are arrays and modules alone, where there were, and nothing is to be done to them."""
    if form.frozen or form.foreign:
        return False
    slots, converters = set(form.slots), getattr(form.cls, "_converters", {})
    for slot, value in values.items():
        if slot not in slots or not _is_plain(value) or not _is_plain(form.get(node, slot)):
            return False
        if slot in to_convert and converters.get(slot) is not None:
            return False
    return True


class _Edit:
    """One node that gets other values in some of its slots.

    Attributes:
        node: as it was.
        form: its form.
        put_here: the slots that get a new value as a whole; in others it is further down that something changes.
        changes: the new parts, by their paths from the node.
        convert: whether the fields' converters are called.
    """

    def __init__(self, node: Any, form: Form, put_here: set[Any], changes: Changes, convert: bool) -> None:
        self.node = node
        self.form = form
        self.put_here = put_here
        self.changes = changes
        self.convert = convert

    def of(self, values: dict[Any, Any]) -> Any:
        """The new node."""
        slots, statics, foreign = set(self.form.slots), dict(self.form.statics), dict(self.form.foreign)
        is_as_before = not self.form.frozen
        for slot, value in values.items():
            if slot in slots and _holds_other_things(self.node, self.form, slot):
                continue
            values[slot] = value = self._taken_in(slot, value)
            is_as_before &= slot in slots and slot not in foreign
            slots.discard(slot)
            statics.pop(slot, None)
            foreign.pop(slot, None)
            if slot in getattr(self.form.cls, "_static_fields", ("__func__",)) or not is_data(value):
                statics[slot] = value
                is_as_before = False
                continue
            slots.add(slot)
            division = division_of(value, self._place(slot))
            if division is not None:
                foreign[slot] = division
                is_as_before = False
        # To look an equal form up takes longer than all of the above.
        form = self.form if is_as_before else self._form_of(slots, statics, foreign, values)
        return self._with_ties(copied(self.node, self.form, form, values), form)

    def _form_of(self, slots: set[Any], statics: dict[Any, Any], foreign: dict[Any, Any], values: Any) -> Form:
        return self.form.replace(
            slots=self.form.order(slots),
            statics=[(slot, statics[slot]) for slot in self.form.order(statics)],
            foreign=[(slot, foreign[slot]) for slot in self.form.order(foreign)],
            frozen=[(slot, rest) for slot, rest in self.form.frozen if self._stays_frozen(slot, rest, slots, values)],
        )

    def _taken_in(self, slot: Any, value: Any) -> Any:
        if slot in self.put_here and self.convert:
            convert = getattr(self.form.cls, "_converters", {}).get(slot)
            value = value if convert is None else convert(value)
        if type(value) not in UNTOUCHED:
            value = freeze(value, self._place(slot))
        return stopped(value, "") if (slot, "") in self.form.frozen else value

    def _place(self, slot: Any) -> str:
        return show_path([self.form.entry(slot)], root=self.form.cls.__name__)

    def _stays_frozen(self, slot: Any, rest: str, slots: set[Any], values: dict[Any, Any]) -> bool:
        is_new = slot in self.put_here
        return slot in slots and not (is_new and (rest or kind_of(values[slot]) is Kind.NODE))

    def _with_ties(self, new: Any, form: Form) -> Any:
        ends = [tie for tie in form.ties if self._ends(tie, new)]
        if ends:
            kept = [tie for tie in form.ties if tie not in ends]
            form = form.replace(ties=kept)
            new = copied(new, form, form)
            for tie in ends:
                if not self._is_replaced(tie.place):
                    new = implanted(new, tie.place, reach(self.node, tie.place))
            form = form_if_node(new) or form
        fill(new, form)
        return new

    def _is_replaced(self, place: Path) -> bool:
        return any(place[: len(path)] == path for path in self.changes)

    def _ends(self, tie: Tie, new: Any) -> bool:
        source = reach(new, tie.source)
        if source is MISSING or (tie.via is not None and self._is_nothing(tie.source, source)):
            return True
        return self._is_replaced(tie.place) and not _is_same(reach(new, tie.place), reach(self.node, tie.place))

    def _is_nothing(self, place: Path, value: Any) -> bool:
        """Whether an edit put structure in a place of data."""
        if not self._is_replaced(place) or is_data(value):
            return False
        owner = reach(self.node, place[:-1])
        form = form_if_node(owner)
        return form is None or not _holds_other_things(owner, form, form.slot_of(place[-1]))


def _is_plain(value: Any) -> bool:
    """Whether a value is data whatever is in it, and stands in a module as it is."""
    kind = kind_of(value)
    return kind is Kind.ARRAY or (kind is Kind.NODE and not isinstance(value, (list, tuple, dict)))


def _holds_other_things(node: Any, form: Form, slot: Any) -> bool:
    """Whether leaves stand in a slot, and none of them is an array: a transformation put them there.

    What is structure in a record, or in another library's node, is no leaf.
    """
    value, division = form.get(node, slot), dict(form.foreign).get(slot)
    if kind_of(value) is Kind.ARRAY:
        return False
    leaves = jax.tree.leaves(value if division is None else closed(value, division), is_leaf=lambda x: x is None)
    return bool(leaves) and not any(kind_of(leaf) is Kind.ARRAY for leaf in leaves)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(a is b for a, b in zip(leaves, others, strict=True))


class _Noting:
    """Errors that are raised inside get a note. A bare `except` would do the same, and catch what it must not."""

    def __init__(self, note: Callable[[], str]) -> None:
        self.note = note

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            error.add_note(self.note())


def check_changed(new: Any, old: Any, done: set[int], why: Callable[[], str]) -> None:
    """Runs `__check_init__` on every module in `new` that is not what it was in `old`.

    Args:
        new: any tree.
        old: what it was made of.
        done: the ids of what needs no check, to which those are added that get one.
        why: tells what changed, for a note on the errors that the checks raise.
    """
    if new is old or new is MISSING or kind_of(new) is Kind.ARRAY or id(new) in done:
        return
    done.add(id(new))
    parts, old_parts = parts_below(new), [] if old is MISSING else parts_below(old)
    form = form_if_node(new)
    if form is None or form is not form_if_node(old):
        before = dict(old_parts)
        old_parts = [(key, before.get(key, MISSING)) for key, _ in parts]
    for (_, value), (_, was) in zip(parts, old_parts, strict=True):
        check_changed(value, was, done, why)
    checks = getattr(type(new), "_checks", ())
    if checks and _is_whole(new):
        with _Noting(lambda: f"`__check_init__` of {type(new).__name__} ran again: {why()}"):
            for check in checks:
                check(new)


def _is_whole(node: Any) -> bool:
    """Whether an array stands in every place for one: in half of a model there is nothing to check."""
    if not is_node(node):
        return kind_of(node) is Kind.ARRAY
    return node is not None and all(_is_whole(value) for _, value in parts_below(node) if value is not MISSING)
