"""`repr` of modules: code with arrays by dtype and shape, and tied places by where they are read from."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from .._jax import Tracer
from ._decide import as_it_stands, form_of
from ._form import BUILDING, MISSING, Form, always_frozen
from ._kinds import Kind, kind_of
from ._methods import BoundMethod
from ._paths import Path

WIDTH = 100
INDENT = "  "
DEEPEST = 100  # levels: below them stands "...", since Python allows no more than a few hundred

_SHORT = {"float": "f", "uint": "u", "int": "i", "complex": "c", "bfloat": "bf"}


def show(module: Any) -> str:
    """The module as code, on one line if it fits, else with a line for every field."""
    return _shown(module, (), {}, 0)


def show_array(value: Any) -> str:
    """`f32[64,4]`, `key<fry>[]`, `bool[3]`."""
    return show_type(str(value.dtype), value.shape)


def show_type(dtype: str, shape: Iterable[int | str]) -> str:
    """`f32[64,4]` for "float32" and (64, 4)."""
    for long, short in _SHORT.items():
        if dtype.startswith(long) and dtype[len(long) :].isdigit():
            dtype = short + dtype[len(long) :]
            break
    return f"{dtype}[{','.join(map(str, shape))}]"


def _shown(value: Any, path: Path, ties: dict[Path, str], depth: int) -> str:
    if path in ties:
        return ties[path]
    if depth > DEEPEST:
        return "..."
    if isinstance(value, jax.Array | Tracer | np.ndarray | np.generic | jax.ShapeDtypeStruct) and hasattr(
        value, "dtype"
    ):
        return show_array(value)
    if kind_of(value) is Kind.NODE and dataclasses.is_dataclass(value):
        return _shown_module(value, path, ties, depth)
    if type(value) is BoundMethod:
        return f"{_shown(value.__self__, (*path, GetAttrKey('__self__')), ties, depth)}.{value.__name__}"
    if kind_of(value) is Kind.RECORD:
        record: Any = value
        items = [(GetAttrKey(name), getattr(record, name)) for name in record._fields]
        shown = [f"{key.name}={_shown(item, (*path, key), ties, depth + 1)}" for key, item in items]
        return _laid_out(f"{type(value).__name__}(", shown, ")", depth)
    if type(value).__repr__ in (list.__repr__, tuple.__repr__, dict.__repr__):
        return _shown_container(value, path, ties, depth)
    if type(value) in (functools.partial, jax.tree_util.Partial):
        return _shown_partial(value, path, ties, depth)
    if isinstance(value, type) or callable(value):
        return getattr(value, "__name__", repr(value))
    return repr(value)


def _shown_module(module: Any, path: Path, ties: dict[Path, str], depth: int) -> str:
    form = form_of(module)
    if form is BUILDING:
        return _shown_module(as_it_stands(module), path, ties, depth)
    # The innermost owner's text wins for a reader of the inner module, the outer one's for the whole: it is shown.
    ties = {(*path, *tie.place): tie.within(path).text() for tie in form.ties} | ties
    items = []
    for declared in dataclasses.fields(module):
        key = form.entry(declared.name)
        if not declared.repr or form.slot_of(key) is MISSING:  # an `__init__` may not have set it yet
            continue
        place = (*path, key)
        items.append(f"{declared.name}={_item(module, form, declared.name, place, ties, depth)}")
    return _laid_out(f"{type(module).__name__}(", items, ")", depth)


def _item(module: Any, form: Form, name: str, place: Path, ties: dict[Path, str], depth: int) -> str:
    if place in ties:
        return ties[place]  # without a look: a tie by a function would compute it
    try:
        value = getattr(module, name)
    except AttributeError:
        return "<tied>"
    shown = _shown(value, place, ties, depth + 1)
    return f"frozen({shown})" if (name, "") in form.frozen and (name, "") not in always_frozen(form.cls) else shown


def _shown_partial(value: Any, path: Path, ties: dict[Path, str], depth: int) -> str:
    """Without the addresses of functions, which Python's own text has."""
    named = [("", each) for each in (value.func, *value.args)] + [(f"{k}=", v) for k, v in value.keywords.items()]
    return _laid_out(
        f"{type(value).__name__}(", [name + _shown(each, path, ties, depth + 1) for name, each in named], ")", depth
    )


def _shown_container(value: Any, path: Path, ties: dict[Path, str], depth: int) -> str:
    if isinstance(value, dict):
        found = [(jax.tree_util.DictKey(key), f"{key!r}: ", item) for key, item in value.items()]
        left, right = "{}"
    else:
        found = [(jax.tree_util.SequenceKey(i), "", item) for i, item in enumerate(value)]
        left, right = "[]" if isinstance(value, list) else "()"
    frozen = (
        {form_of(value).entry(slot) for slot, rest in form_of(value).frozen if not rest}
        if kind_of(value) is Kind.NODE
        else ()
    )
    items = []
    for key, before, item in found:
        shown = _shown(item, (*path, key), ties, depth + 1)
        items.append(before + (f"frozen({shown})" if key in frozen else shown))
    if len(items) == 1 and left == "(":
        right = ",)"
    return _laid_out(left, items, right, depth)


def _laid_out(left: str, items: list[str], right: str, depth: int) -> str:
    line = f"{left}{', '.join(items)}{right}"
    if len(line) + depth * len(INDENT) <= WIDTH and "\n" not in line:
        return line
    inner, outer = INDENT * (depth + 1), INDENT * depth
    rows = "".join(f"{inner}{item},\n" for item in items)
    return f"{left}\n{rows}{outer}{right.removeprefix(',')}"
