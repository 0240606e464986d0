"""Strong structure that weighs nothing: write JAX programs the natural way, run the expert's form."""

import typing as _typing
from importlib import import_module as _import_module

from ._errors import AerogelError as AerogelError
from ._errors import Disagreement as Disagreement
from ._errors import InternalError as InternalError
from ._errors import UsageError as UsageError

if _typing.TYPE_CHECKING:  # what `__getattr__` finds, for type checkers and editors
    from . import audit as audit
    from . import compiler as compiler
    from .module import AbstractField as AbstractField
    from .module import At as At
    from .module import FieldError as FieldError
    from .module import FrozenError as FrozenError
    from .module import Module as Module
    from .module import PathError as PathError
    from .module import StateError as StateError
    from .module import StructureError as StructureError
    from .module import Tie as Tie
    from .module import TieError as TieError
    from .module import Variable as Variable
    from .module import Where as Where
    from .module import at as at
    from .module import cast as cast
    from .module import combine as combine
    from .module import count_params as count_params
    from .module import field as field
    from .module import freeze as freeze
    from .module import frozen as frozen
    from .module import map_leaves as map_leaves
    from .module import partition as partition
    from .module import tie as tie
    from .module import ties as ties
    from .module import trainable as trainable
    from .module import unfreeze as unfreeze
    from .module import untie as untie
    from .transform import Summary as Summary
    from .transform import assign as assign
    from .transform import explain as explain
    from .transform import optimize as optimize
    from .transform import stateful as stateful
    from .transform import summary as summary
    from .transform import verify as verify

_HOME = {
    **dict.fromkeys(("AbstractField", "Module", "Tie", "field", "tie", "ties", "untie"), ".module"),
    **dict.fromkeys(("StateError", "Variable"), ".module"),
    **dict.fromkeys(("assign", "stateful"), ".transform"),
    **dict.fromkeys(("FieldError", "FrozenError", "PathError", "StructureError", "TieError"), ".module"),
    **dict.fromkeys(("At", "Where", "at", "freeze", "frozen", "trainable", "unfreeze"), ".module"),
    **dict.fromkeys(("cast", "combine", "count_params", "map_leaves", "partition"), ".module"),
    **dict.fromkeys(("Summary", "explain", "optimize", "summary", "verify"), ".transform"),
}
__all__ = ["AerogelError", "Disagreement", "InternalError", "UsageError"]
__all__ += ["AbstractField", "Module", "Tie", "field", "tie", "ties", "untie"]
__all__ += ["FieldError", "FrozenError", "PathError", "StructureError", "TieError"]
__all__ += ["StateError", "Variable", "assign", "stateful"]
__all__ += ["At", "Where", "at", "freeze", "frozen", "trainable", "unfreeze"]
__all__ += ["cast", "combine", "count_params", "map_leaves", "partition"]
__all__ += ["Summary", "explain", "optimize", "summary", "verify"]


# The command `aerogel` stands in this package, so Python runs this file before any script starts, and importing JAX
# takes a second or two. What needs JAX is therefore imported when it is first asked for. This is the one place that
# does so; every other file imports what it needs at its top.
def __getattr__(name: str) -> _typing.Any:
    if name in ("audit", "compiler"):
        return _import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_import_module(_HOME[name], __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "audit", "compiler"})
