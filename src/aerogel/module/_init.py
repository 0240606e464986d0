"""The `__init__` that a class of modules gets where it writes none: that of a dataclass, with converters."""

import dataclasses
import typing
from typing import Any, Protocol

from ._errors import FieldError
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


class _AnyProtocol(Protocol):
    """To see which `__init__` Python gives to protocols that have none: one that looks for that of another base."""


_NO_INIT = None, vars(_AnyProtocol).get("__init__")


def give_init(cls: Any, declared: "tuple[dataclasses.Field[Any], ...]") -> bool:
    """An `__init__` of the class's own, or of the nearest base that wrote one, stays; else one is written.

    A class without fields gets none, so that a mixin does not hide that of the base after it.

    Returns:
        whether nothing is left to do when it is over.
    """
    base = next(base for base in cls.__mro__ if vars(base).get("__init__") not in _NO_INIT)
    is_written, has_post = base is object or _is_written_init(base), hasattr(cls, "__post_init__")
    if is_written and (base is object or has_post or _all_declared(cls)):
        cls.__init__ = _written_init(cls)
    no_value = [f for f in declared if not f.init and f.default is f.default_factory is dataclasses.MISSING]
    return is_written and not no_value and not has_post


def _written_init(cls: type) -> Any:
    """A function that sets every field, frozen, and calls `__post_init__` if there is one.

    It is written as source, once per class, as `dataclasses` does: a loop over the fields takes three times as long.
    What is no field in it has a name that no field has.
    """
    declared = _all_declared(cls)
    scope: dict[str, Any] = {"__put__": put, "__untouched__": UNTOUCHED, "__freeze__": freeze, "__type__": type}
    given = [f for f in declared if f.init]
    ordered = [f for f in given if not f.kw_only]
    by_name = [f for f in given if f.kw_only]
    _check_order(cls, ordered)
    heads = [_head(f, scope) for f in ordered] + (["*"] if by_name else []) + [_head(f, scope) for f in by_name]
    has_post = hasattr(cls, "__post_init__")
    lines = [line for f in declared if not is_init_var(f) for line in _body(cls, f, scope, frozen=not has_post)]
    if has_post:
        lines.append(f"__self__.__post_init__({', '.join(f.name for f in given if is_init_var(f))})")
    body = "\n    ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(['__self__', *heads])}):\n    {body}", scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {f.name: f.type for f in given} | {"return": None}
    init._is_written = True
    return init


def _is_written_init(cls: type) -> bool:
    """Whether nobody wrote the `__init__` that stands in the class: we did, or `dataclasses`, from the fields."""
    return getattr(vars(cls)["__init__"], "_is_written", False) or is_of_dataclass(cls, "__init__")


@dataclasses.dataclass
class _Sample:
    """To see where `dataclasses` says that the functions are from that it writes."""


def is_of_dataclass(cls: type, name: str) -> bool:
    """Whether `dataclasses` wrote the method that stands in the class."""
    method, sample = vars(cls)[name], vars(_Sample)[name]
    return "__dataclass_params__" in vars(cls) and _origin(method) == _origin(sample)


def _origin(function: Any) -> Any:
    # The name too: the file alone is "<string>" for all that `exec` and `python -c` run.
    code = getattr(function, "__code__", None)
    return code and (code.co_filename, code.co_qualname)


def _check_order(cls: type, ordered: "list[dataclasses.Field[Any]]") -> None:
    missing = dataclasses.MISSING
    with_default = [f.default is not missing or f.default_factory is not missing for f in ordered]
    late = next((k for k, has in enumerate(with_default) if not has and any(with_default[:k])), None)
    if late is not None:
        first = ordered[with_default.index(True)].name
        raise FieldError(
            what=f"`{ordered[late].name}` has no default and stands after `{first}`, which has one.",
            place=f"{cls.__module__}.{cls.__name__}",
            to_fix="declare it before, give it a default, or take it by name: ag.field(kw_only=True)",
        )


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


def _all_declared(cls: type) -> list["dataclasses.Field[Any]"]:
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
        scope[f"__default_{name}__"] = declared.default
        return f"{name}=__default_{name}__"
    if declared.default_factory is not dataclasses.MISSING:
        scope["__missing__"] = dataclasses.MISSING
        return f"{name}=__missing__"
    return name


def _body(cls: type, declared: "dataclasses.Field[Any]", scope: dict[str, Any], frozen: bool) -> list[str]:
    name, lines = declared.name, []
    if declared.default_factory is not dataclasses.MISSING:
        scope[f"__make_{name}__"] = declared.default_factory
        when = f"if {name} is __missing__: " if declared.init else ""
        lines.append(f"{when}{name} = __make_{name}__()")
    elif not declared.init:
        if declared.default is dataclasses.MISSING:
            return []
        scope[f"__default_{name}__"] = declared.default
        lines.append(f"{name} = __default_{name}__")
    convert = converter_of(cls.__name__, declared)
    if convert is not None:
        scope[f"__convert_{name}__"] = convert
        lines.append(f"{name} = __convert_{name}__({name})")
    if frozen:
        lines.append(f"if __type__({name}) not in __untouched__: {name} = __freeze__({name}, '{cls.__name__}.{name}')")
    return [*lines, f"__put__(__self__, '{name}', {name})"]
