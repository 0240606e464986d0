"""What a class statement says: checked, and put right where Python would read it in another way."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ._errors import FieldError
from ._field import field, is_abstract
from ._form import MISSING
from ._init import is_of_dataclass
from ._late import raw

_OWN = frozenset(["_form", "_late", "_shadow", "_flat"])  # of every object; most are absent at most times


def check_class(cls: Any) -> None:
    """Refuses names of Aerogel's own attributes, and a `__setattr__`, the class's own or of a frozen dataclass."""
    place, taken = f"{cls.__module__}.{cls.__name__}", _OWN.union(type(cls).__annotations__)
    for name in (*vars(cls).get("__annotations__", {}), *vars(cls)):
        if name in taken:
            raise FieldError(
                what=f"`{name}` is a name that Aerogel uses in every module.",
                place=place,
                to_fix=f"choose another name: {name.strip('_')}",
            )
    for base in cls.__mro__:
        if getattr(vars(base).get("__dataclass_params__"), "frozen", False):
            raise FieldError(
                what=f"a module cannot have a frozen dataclass for a base: `{base.__name__}`.",
                place=place,
                to_fix=f"make that a module too, which is as frozen: class {base.__name__}(ag.Module)",
            )
        if "__setattr__" in vars(base) and base is not object and "_construction" not in vars(base):
            raise FieldError(
                what=f"a module sets its attributes itself: `{base.__name__}.__setattr__` would never be called.",
                place=place,
                to_fix="to change what is set: ag.field(converter=...); to look at it: __check_init__",
            )


def shield(cls: Any) -> None:
    """A user's `__getattr__`, which often asks another module, is not asked for Aerogel's own attributes."""
    asked = getattr(cls, "__getattr__", None)
    if asked is None or hasattr(asked, "_is_shield"):
        return

    def __getattr__(self: Any, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return asked(self, name)

    shielding: Any = functools.wraps(asked)(__getattr__)
    shielding._is_shield = True
    cls.__getattr__ = shielding


def take_back(cls: Any, root: Any) -> None:
    """Of a dataclass that stands before the modules in the bases, `==`, `hash` and `repr` know its own fields only."""
    for name in ("__eq__", "__hash__", "__repr__"):
        base = next(base for base in cls.__mro__ if name in vars(base))
        if is_of_dataclass(base, name):
            setattr(cls, name, vars(root)[name])


def hidden_by_fields(cls: Any) -> list[str]:
    """Fields that hide a property or an abstract method of a base, which `dataclasses` would take for defaults.

    So it would what the metaclass has by the name of a field: `mro`, `register`. Neither is one when this is over.
    """
    new_names = [name for name in vars(cls).get("__annotations__", {}) if name not in vars(cls)]
    found = [name for name in new_names if _is_hidden(raw(cls, name))]
    for name in (*found, *(name for name in new_names if hasattr(type(cls), name))):
        setattr(cls, name, field())
    return found


def _is_hidden(inherited: Any) -> bool:
    is_abstract_method = getattr(inherited, "__isabstractmethod__", False)
    return is_abstract_method or isinstance(inherited, property | functools.cached_property)


def taken_out(cls: Any) -> set[str]:
    """The names of the class's own `AbstractField`s, which are no annotations of it any more."""
    own = vars(cls).get("__annotations__", {})
    abstract = {name for name, annotation in own.items() if is_abstract(annotation)}
    for name in abstract:
        del own[name]
    return abstract


def require(cls: Any, abstract: set[str]) -> None:
    """Abstract fields count as abstract methods until a subclass has them."""
    wanted = abstract.union(*(getattr(base, "_abstract_fields", ()) for base in cls.__bases__))
    given = {name for name in wanted if hasattr(cls, name) or name in cls.__dataclass_fields__}
    cls._abstract_fields = frozenset(wanted - given)
    cls.__abstractmethods__ |= cls._abstract_fields


def default_of(declared: "dataclasses.Field[Any]") -> tuple[Any, Callable[[], Any] | None]:
    """The default and what makes one, MISSING and None for none."""
    missing = dataclasses.MISSING
    default = MISSING if declared.default is missing else declared.default
    return default, None if declared.default_factory is missing else declared.default_factory


def drop_bound_defaults(cls: Any) -> None:
    """A default that is a function would be a method of the class; `__init__` knows it without."""
    for name, (default, _) in cls._defaults.items():
        if name in vars(cls) and hasattr(type(default), "__get__"):
            delattr(cls, name)
