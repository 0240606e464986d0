"""Modules and frozen containers in pickle: their values and their form, so that nothing is decided anew."""

import copyreg
import sys
from dataclasses import dataclass
from typing import Any

from ._containers import FrozenDict, FrozenList, FrozenTuple
from ._decide import form_of
from ._form import MISSING, AttributeForm, Form
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
    statics = {slot: _portable(value) for slot, value in form.statics}
    told = (type(form), form.cls, form.slots, statics, form.holes, form.foreign, form.ties, form.frozen)
    return _rebuilt, (told, {slot: value for slot, value in values.items() if value is not MISSING}, late)


def _rebuilt(told: tuple[Any, ...], values: dict[Any, Any], late: dict[str, Any]) -> Any:
    kind, cls, slots, statics, *others = told
    form: Form = kind.of(cls, slots, [(s, _imported(v)) for s, v in statics.items()], *others)
    node = form.make(values)
    if late:
        put_all_late(node, late)
    return node


def _portable(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_portable, value))
    by_name = ByName(getattr(value, "__module__", None) or "", getattr(value, "__qualname__", None) or "")
    is_plain = isinstance(value, type) or not callable(value)
    return by_name if not is_plain and by_name.found() is value else value


def _imported(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_imported, value))
    if type(value) is not ByName:
        return value
    __import__(value.module)
    return value.found()


for _cls in (FrozenList, FrozenTuple, FrozenDict):
    copyreg.pickle(_cls, reduced)
