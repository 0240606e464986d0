"""The one place where it is decided what is data in a node: looked at once per built node, then carried along.

What `__init__` leaves in a module cannot change, so the decision is made when it is first asked for.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ._containers import FrozenDict, FrozenList, FrozenOrderedDict, FrozenTuple, MappingForm, SequenceForm, sorted_keys
from ._errors import FieldError
from ._foreign import Split, has_structure, split_of
from ._form import BUILDING, MISSING, AttributeForm, Form, Tie, always_frozen, new, put
from ._freeze import freeze, is_data
from ._kinds import KINDS, Kind, kind_of
from ._late import build_attributes
from ._paths import Path

# Modules that are defaults of fields: many instances hold them, and none of them means to share them.
default_modules: set[int] = set()


def form_of(node: Any) -> Form:
    """The form of a module, bound method or frozen container."""
    try:
        form = node._form
    except AttributeError:
        build_attributes(node)
        return node._form
    if form is None:
        for each in _undecided(node):
            put(each, "_form", _decide(each))
        return node._form
    return form


def _undecided(node: Any) -> Iterator[Any]:
    """The nodes of ours that nothing is decided about, those below another one first; without Python's own stack.

    Raises:
        FieldError: one of them stands in itself.
    """
    above: set[int] = set()
    pending: list[tuple[Any, bool]] = [(node, False)]
    while pending:
        each, seen = pending.pop()
        if seen:
            above.remove(id(each))
            yield each
        elif id(each) in above:
            raise FieldError(
                what="a module cannot stand in itself.",
                place=type(each).__name__,
                to_fix="leave the attribute out: methods have `self`",
            )
        elif KINDS.get(type(each)) is Kind.TUPLE:
            pending += [(part, False) for part in each]
        elif getattr(each, "_form", MISSING) is None:
            above.add(id(each))
            pending.append((each, True))
            pending += [(part, False) for part in _data_in(each)]


def _data_in(node: Any) -> list[Any]:
    """What stands in a node and may be data."""
    if isinstance(node, dict):
        return list(node.values())
    if isinstance(node, list | tuple):
        return list(node)
    always = getattr(type(node), "_static_fields", ())
    return [value for name, value in held_by(node) if name not in always]


def held_by(node: Any) -> list[tuple[str, Any]]:
    """The attributes that a module or bound method has: all, or those that its `__init__` has set so far."""
    found = ((name, getattr(node, name, MISSING)) for name in type(node)._fields_in_order)
    return [(name, value) for name, value in found if value is not MISSING]


def as_it_stands(module: Any) -> Any:
    """A finished module with what the `__init__` of this one has set so far."""
    standing = new(type(module))
    for name, value in held_by(module):
        put(standing, name, freeze(value, f"{type(module).__name__}.{name}"))
    put(standing, "_form", None)
    return standing


def form_if_node(value: Any) -> Form | None:
    """The form of a node of ours or of a plain tuple; None for everything that ties cannot look into."""
    kind = KINDS.get(type(value)) or kind_of(value)
    if kind is Kind.NODE:
        return getattr(value, "_form", None) or form_of(value)
    if kind in (Kind.TUPLE, Kind.RECORD):  # whatever stands in it now: paths go by position
        return SequenceForm.of(type(value), range(len(value)))
    return None


def _decide(node: Any) -> Form:
    if isinstance(node, FrozenDict):
        ordered = tuple(node) if isinstance(node, FrozenOrderedDict) else ()
        found = [(key, node[key]) for key in ordered or sorted_keys(node)]
        return _sort_out(MappingForm, type(node), found, ordered=ordered)
    if isinstance(node, FrozenList | FrozenTuple):
        return _sort_out(SequenceForm, FrozenList if isinstance(node, list) else tuple, list(enumerate(node)))
    cls = type(node)
    always = getattr(cls, "_static_fields", ("__func__",))
    form = _sort_out(AttributeForm, cls, _with_own_numbers(node), always)
    constant = always_frozen(cls)
    if constant:
        form = form.replace(frozen=constant)
    ties = list(find_ties(node, form)) if len(form.slots) > 0 else []
    if not ties:
        return form
    direct = [form.slot_of(tie.place[0]) for tie in ties if len(tie.place) == 1]
    for slot in direct:
        form = form.without(slot)
    return form.replace(ties=ties)


def _with_own_numbers(node: Any) -> list[tuple[str, Any]]:
    """The attributes, where a field that is declared as a number holds Python's, and not one of NumPy's.

    NumPy's would be a leaf, as its arrays are: `np.prod(shape)` as the size of a layer, a traced value.
    """
    numbers = getattr(type(node), "_number_fields", ())
    found = held_by(node)
    for k, (name, value) in enumerate(found):
        if isinstance(value, np.generic) and name in numbers:
            found[k] = (name, value.item())
            put(node, *found[k])
    return found


def _sort_out(kind: type[Form], cls: type, found: list[tuple[Any, Any]], always: Any = (), ordered: Any = ()) -> Form:
    slots, statics, foreign = [], [], []
    for slot, value in found:
        if slot in always or not is_data(value):
            statics.append((slot, value))
            continue
        slots.append(slot)
        division = division_of(value, f"{cls.__name__}.{slot}")
        if division is not None:
            foreign.append((slot, division))
    return kind.of(cls, slots, statics, foreign=foreign, ordered=ordered)


def division_of(value: Any, place: str) -> Split | Form | None:
    """How a node that is not ours is to be divided; None if all of its leaves are arrays, so that JAX may see it.

    Raises:
        StructureError: one of its other leaves cannot be hashed.
    """
    if not has_structure(value):
        return None
    if kind_of(value) is Kind.RECORD:
        return _sort_out(SequenceForm, type(value), list(enumerate(value)))
    return split_of(value, place)


def find_ties(owner: Any, form: Form) -> Iterator[Tie]:
    """The places below `owner` that hold what stands at an earlier place, if `owner` is the module that owns both.

    Two places in one module below it are that module's own business: it tied them, or somebody untied them.
    """
    seen: dict[int, tuple[Path, Path]] = {}
    pending = [((form.entry(slot),), (), form.get(owner, slot)) for slot in reversed(form.slots)]
    skipped = {tie.place for tie in form.ties}
    while pending:
        path, branch, value = pending.pop()
        if skipped and path in skipped:  # a path is hashed key by key
            continue
        kind = kind_of(value)
        # The module or array directly below the owner, through containers.
        branch = branch or (path if kind is Kind.ARRAY or _is_module(value) else ())
        if kind is Kind.ARRAY or _is_module(value):
            first, its_branch = seen.setdefault(id(value), (path, branch))
            if its_branch != branch and _can_be_shared(value):  # asked last: it looks at all that stands in a module
                yield Tie(path, first)
                continue
        inner = form_if_node(value)
        if inner is not None and inner is not BUILDING:  # a method of a module whose `__init__` calls a transformation
            skipped |= {(*path, *tie.place) for tie in inner.ties}
            pending += [((*path, inner.entry(s)), branch, inner.get(value, s)) for s in reversed(inner.slots)]


def _is_module(value: Any) -> bool:
    return kind_of(value) is Kind.NODE and not isinstance(value, list | tuple | dict)


def _can_be_shared(value: Any) -> bool:
    """NumPy's scalars and modules without arrays go by value; a default of a field belongs to each instance."""
    if isinstance(value, np.generic) or id(value) in default_modules:
        return False
    return not _is_module(value) or _holds_leaves(value)


def _holds_leaves(node: Any) -> bool:
    """Whether any leaf stands in a node: mostly the first that is looked at."""
    pending = [node]
    while pending:
        value = pending.pop()
        form = form_if_node(value)
        if form is None:
            if jax.tree.leaves(value):
                return True
        elif form is BUILDING:
            return bool(jax.tree.leaves(node))
        else:
            pending += [form.get(value, slot) for slot in form.slots]
    return False
