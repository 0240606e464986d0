"""The `__init__` that a class of modules gets where it writes none: that of a dataclass, with converters."""

import dataclasses
import typing
from typing import Any

from ._field import spec_of
from ._form import put
from ._freeze import UNTOUCHED, as_data, freeze


def converter_of(cls_name: str, declared: "dataclasses.Field[Any]") -> Any:
    """What a value of the field goes through on its way in; None for nothing."""
    spec = spec_of(declared)
    if not spec.dynamic:
        return spec.converter
    first, place = spec.converter, f"{cls_name}.{declared.name}"
    return lambda value: as_data(value if first is None else first(value), place)


def written_init(cls: type) -> Any:
    """A function that sets every field, frozen, and calls `__post_init__` if there is one.

    It is written as source, once per class, as `dataclasses` does: a loop over the fields takes three times as long.
    """
    declared = all_declared(cls)
    scope: dict[str, Any] = {"_put": put, "_untouched": UNTOUCHED, "_freeze": freeze, "_type": type}
    given = [f for f in declared if f.init]
    ordered = [f for f in given if not f.kw_only]
    by_name = [f for f in given if f.kw_only]
    heads = [_head(f, scope) for f in ordered] + (["*"] if by_name else []) + [_head(f, scope) for f in by_name]
    has_post = hasattr(cls, "__post_init__")
    lines = [line for f in declared if not is_init_var(f) for line in _body(cls, f, scope, frozen=not has_post)]
    if has_post:
        lines.append(f"_self.__post_init__({', '.join(f.name for f in given if is_init_var(f))})")
    body = "\n    ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(['_self', *heads])}):\n    {body}", scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {f.name: f.type for f in given} | {"return": None}
    init._is_written = True
    return init


def written_check(names: tuple[str, ...], defaults: dict[str, Any]) -> Any:
    """A function that says whether a module has all these attributes, with none that must be frozen.

    An attribute that reads as its default may be read from the class: it is not counted as set.

    Written as source for the same reason: it runs after every `__init__` that a user wrote.
    """
    unlike = {name: f" and v is not _default_{name}" for name in defaults}
    terms = [f"(v := m.{name}) is not m{unlike.get(name, '')} and _type(v) in _untouched" for name in names]
    scope: dict[str, Any] = {"_untouched": UNTOUCHED, "_type": type}
    scope |= {f"_default_{name}": value for name, value in defaults.items()}
    body = f"    try:\n        return {' and '.join(terms) or 'True'}\n    except AttributeError:\n        return False"
    exec(f"def is_finished(m):\n{body}", scope)
    return scope["is_finished"]


def all_declared(cls: type) -> list["dataclasses.Field[Any]"]:
    """Fields and `InitVar`s in the order of their declaration."""
    found = cls.__dataclass_fields__.values()
    names = {f.name for f in dataclasses.fields(cls)}
    return [f for f in found if f.name in names or is_init_var(f)]


def is_init_var(declared: "dataclasses.Field[Any]") -> bool:
    """Whether it is an argument of `__post_init__` and no field."""
    kind = declared.type
    if isinstance(kind, str):
        return kind.partition("[")[0].rpartition(".")[2] == "InitVar"
    return isinstance(kind, dataclasses.InitVar) or typing.get_origin(kind) is dataclasses.InitVar


def _head(declared: "dataclasses.Field[Any]", scope: dict[str, Any]) -> str:
    name = declared.name
    if declared.default is not dataclasses.MISSING:
        scope[f"_default_{name}"] = declared.default
        return f"{name}=_default_{name}"
    if declared.default_factory is not dataclasses.MISSING:
        scope["_missing"] = dataclasses.MISSING
        return f"{name}=_missing"
    return name


def _body(cls: type, declared: "dataclasses.Field[Any]", scope: dict[str, Any], frozen: bool) -> list[str]:
    name, lines = declared.name, []
    if declared.default_factory is not dataclasses.MISSING:
        scope[f"_make_{name}"] = declared.default_factory
        when = f"if {name} is _missing: " if declared.init else ""
        lines.append(f"{when}{name} = _make_{name}()")
    elif not declared.init:
        if declared.default is dataclasses.MISSING:
            return []
        scope[f"_default_{name}"] = declared.default
        lines.append(f"{name} = _default_{name}")
    convert = converter_of(cls.__name__, declared)
    if convert is not None:
        scope[f"_convert_{name}"] = convert
        lines.append(f"{name} = _convert_{name}({name})")
    if frozen:
        lines.append(f"if _type({name}) not in _untouched: {name} = _freeze({name}, '{cls.__name__}.{name}')")
    return [*lines, f"_put(_self, '{name}', {name})"]
