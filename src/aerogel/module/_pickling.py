"""Modules and frozen containers in pickle: their values and their form, so that nothing is decided anew."""

import copyreg
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._containers import FrozenDict, FrozenList, FrozenOrderedDict, FrozenTuple, MappingForm, SequenceForm
from ._decide import form_of
from ._foreign import Split, split_of
from ._form import MISSING, AttributeForm, Form
from ._kinds import Kind, kind_of
from ._late import late_values, put_all_late


@dataclass(frozen=True)
class ByName:
    """A function that pickle cannot keep, though it can be imported: `jax.nn.relu` and all that `jax.jit` made."""

    module: str
    name: str

    def found(self) -> Any:
        """The function, or MISSING."""
        value: Any = sys.modules.get(self.module, MISSING)
        for part in self.name.split("."):
            value = getattr(value, part, MISSING)
        return value


def reduced(node: Any) -> Any:
    """What pickle keeps of a module, a bound method or a frozen container."""
    form = form_of(node)
    late = late_values(node) if isinstance(form, AttributeForm) else {}
    values = {slot: form.get(node, slot) for slot in (*form.slots, *form.holes) if slot not in late}
    return _rebuilt, (form, {slot: _portable(value) for slot, value in values.items() if value is not MISSING}, late)


def _rebuilt(form: Form, values: dict[Any, Any], late: dict[str, Any]) -> Any:
    node = form.make({slot: _imported(value) for slot, value in values.items()})
    if late:
        put_all_late(node, late)
    return node


def _reduced_form(form: Form) -> Any:
    statics = {slot: _portable(value) for slot, value in form.statics}
    told = (form.cls, form.slots, statics, form.holes, form.foreign, form.ties, form.frozen, form.ordered)
    return _interned, (type(form), *told)


def _interned(kind: type[Form], cls: type, slots: Any, statics: dict[Any, Any], *others: Any) -> Form:
    return kind.of(cls, slots, [(slot, _imported(value)) for slot, value in statics.items()], *others)


def _reduced_split(split: Split) -> Any:
    """Told by a node of that structure: what another library has in its treedefs need not be equal to its copy."""
    leaves = dict.fromkeys(split.data, np.zeros(())) | dict(split.rest)
    return split_of, (split.structure.unflatten([leaves[i] for i in range(len(leaves))]), "")


def _portable(value: Any) -> Any:
    if kind_of(value) in (Kind.TUPLE, Kind.RECORD):
        return _mapped(_portable, value)
    by_name = ByName(getattr(value, "__module__", None) or "", getattr(value, "__qualname__", None) or "")
    is_plain = isinstance(value, type) or not callable(value)
    return by_name if not is_plain and by_name.found() is value else value


def _mapped(f: Any, value: Any) -> Any:
    return type(value)._make(map(f, value)) if kind_of(value) is Kind.RECORD else tuple(map(f, value))


def _imported(value: Any) -> Any:
    if kind_of(value) in (Kind.TUPLE, Kind.RECORD):
        return _mapped(_imported, value)
    if type(value) is not ByName:
        return value
    __import__(value.module)
    return value.found()


for _cls in (FrozenList, FrozenTuple, FrozenDict, FrozenOrderedDict):
    copyreg.pickle(_cls, reduced)
for _kind in (AttributeForm, SequenceForm, MappingForm):
    copyreg.pickle(_kind, _reduced_form)
copyreg.pickle(Split, _reduced_split)
