"""Tied places: taken out of the tree when a module is flattened, put back when it is built.

All of this is by path, so it holds for whatever transformations put into the tree: where a path leads nowhere (a
submodule was replaced by a label, say), there is nothing to take out and nothing to put back.
"""

import functools
from collections.abc import Callable
from typing import Any

from ._containers import FrozenTuple, with_form
from ._decide import division_of, form_if_node
from ._foreign import Split
from ._form import MISSING, AttributeForm, Form, Tie, put
from ._freeze import is_data
from ._late import late_values, put_late
from ._paths import Path
from ._stop import stopped

Via = Callable[[Any], Any] | None


def children_of(node: Any, form: Form) -> tuple[Any, ...]:
    """What JAX gets to see of a node: its children, without what is tied to another place."""
    if form.ties or form.foreign:
        cached = getattr(node, "_shadow", None)
        if cached is None:
            cached = _shadow(node, form)
            put(node, "_shadow", cached)
        return cached
    return form.read(node)


def built(form: Form, children: tuple[Any, ...]) -> Any:
    """A node from what `children_of` gave, or from what a transformation made of it."""
    values = dict(zip(form.slots, children, strict=True))
    for slot, rest in form.frozen:
        if slot in values:  # else it is tied to another place now
            values[slot] = stopped(values[slot], rest)
    for slot, division in form.foreign:
        if isinstance(division, Split):  # what a form makes is open
            values[slot] = division.open(values[slot])
    node = form.make(values)
    if form.ties:
        fill(node, form)
    return node


def reach(node: Any, path: Path) -> Any:
    """The value at a path, or MISSING."""
    for key in path:
        form = form_if_node(node)
        slot = MISSING if form is None else form.slot_of(key)
        node = MISSING if form is None or slot is MISSING else form.get(node, slot)
        if node is MISSING:
            return MISSING
    return node


def _shadow(node: Any, form: Form) -> tuple[Any, ...]:
    values = dict(zip(form.slots, form.read(node), strict=True))
    for tie in form.ties:
        slot = form.slot_of(tie.place[0])
        if slot in values:
            values[slot] = punched(values[slot], tie.place[1:])
    for slot, division in form.foreign:
        values[slot] = closed(values[slot], division)
    return tuple(values.values())


def closed(value: Any, division: Split | Form) -> Any:
    """A node of others as JAX sees it; `value` itself where a transformation put something else."""
    if isinstance(division, Split):
        return division.close(value)
    form = form_if_node(value)
    if form is None or form.cls is not division.cls:
        return value
    return with_form(FrozenTuple, value, functools.reduce(Form.without, form.holes, division))


def punched(node: Any, path: Path) -> Any:
    """The node without data at `path`. The value there can still be read."""
    form = form_if_node(node)
    slot = MISSING if form is None else form.slot_of(path[0])
    if form is None or slot is MISSING or slot not in form.slots:
        return node
    if len(path) == 1:
        return copied(node, form, form.without(slot))
    inner = form.get(node, slot)
    changed = punched(inner, path[1:])
    return node if changed is inner else copied(node, form, form, {slot: changed})


def implanted(node: Any, path: Path, value: Any, via: Via = None) -> Any:
    """The node with `value`, or `via` of it, at `path`, where it had none."""
    form = form_if_node(node)
    slot = MISSING if form is None else form.slot_of(path[0])
    if form is None or slot is MISSING:
        return node
    changed = _with_value(node, form, slot, path[1:], value, via)
    if form.ties and changed is not node:
        fill(changed, changed._form)  # a tie of its own may be read from the place that has its value now
    return changed


def _with_value(node: Any, form: Form, slot: Any, rest: Path, value: Any, via: Via) -> Any:
    if rest:
        inner = form.get(node, slot)
        return node if inner is MISSING else copied(node, form, form, {slot: implanted(inner, rest, value, via)})
    # What a transformation put in the place of arrays is not looked into.
    division = division_of(value, "") if via is None and is_data(value) else None
    is_new = slot in form.slots and dict(form.foreign).get(slot) != division
    whole = form.without(slot) if is_new else form
    whole = whole.restored(slot, division) if slot in whole.holes else whole
    if via is None:
        return copied(node, form, whole, {slot: value})
    changed = copied(node, form, whole, leave_out=slot)
    put_late(changed, slot, via, value)
    return changed


def fill(node: Any, form: Form) -> None:
    """Gives a new module's tied places their values, as far as these are there."""
    for tie in form.ties:
        value = reach(node, tie.source)
        if value is not MISSING:
            _fill_one(node, form, tie, value)


def _fill_one(node: Any, form: Form, tie: Tie, value: Any) -> None:
    slot = form.slot_of(tie.place[0])
    if slot is MISSING:
        return
    if len(tie.place) > 1:
        inner = form.get(node, slot)
        if inner is not MISSING:
            put(node, slot, implanted(inner, tie.place[1:], value, tie.via))
    elif tie.via is None:
        put(node, slot, value)
    else:
        put_late(node, slot, tie.via, value)


def copied(node: Any, old: Form, form: Form, changes: dict[Any, Any] | None = None, leave_out: Any = MISSING) -> Any:
    """A node of another form with the values of `node`, but for `changes`."""
    late = late_values(node) if isinstance(old, AttributeForm) else {}
    if late or old.holes:
        slots = [slot for slot in (*old.slots, *old.holes) if slot not in late]
        values = {slot: value for slot in slots if (value := old.get(node, slot)) is not MISSING}
    else:
        values = dict(zip(old.slots, old.read(node), strict=True))
    values.pop(leave_out, None)
    result = form.make(values | (changes or {}))
    kept = {name: how for name, how in late.items() if name != leave_out and name not in (changes or {})}
    if kept:
        put(result, "_late", kept)
    return result
