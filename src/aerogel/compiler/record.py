"""Records: the small values that the compiler is made of, which never change."""

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

C = TypeVar("C", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: C) -> C:
    """`cls` as `dataclass(frozen=True)` makes it, in a fifth of the time; assignments are left to the type checker.

    `dataclass` writes six methods of a frozen class as source and compiles them, 0.5 ms for each class; the compiler
    has 300, and their methods were half of its import. Here `__init__` alone is written, and the others are the same
    functions for all. Fields with `compare=False`, `hash=False` or `repr=False` are left out, as there, and a method
    that the class has is kept. What users hold (reports, decisions, rules, sites) is a frozen dataclass.
    """
    own = vars(cls)
    made = {name: own[name] for name in ("__eq__", "__hash__", "__repr__") if own.get(name) is not None}
    dataclass(eq=False, repr=False)(cls)
    compared = _reader(cls, lambda f: f.compare)
    hashed = _reader(cls, lambda f: f.compare if f.hash is None else f.hash)

    def __eq__(self: Any, other: object) -> bool:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    methods = {"__eq__": __eq__, "__hash__": lambda self: hash(hashed(self)), "__repr__": _repr, **made}
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _reader(cls: type, chosen: Any) -> Any:
    """The function that reads those fields of an instance."""
    names = [f.name for f in fields(cls) if chosen(f)]
    return attrgetter(*names) if names else lambda _: ()


def _repr(self: Any) -> str:
    values = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"
