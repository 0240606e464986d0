"""Whose function is it? From what was given to `jax.jit` to the function and line that the user knows.

Libraries wrap: Equinox compiles a closure of its own and passes the user's function as a static argument, Flax puts
it into an object or a closure. All searches are bounded, and look only.
"""

import functools
import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

LIBRARY_PATHS = tuple(
    {os.path.join(path, "") for key, path in sysconfig.get_paths().items() if key in ("stdlib", "platstdlib")}
    | {os.path.join(path, "") for key, path in sysconfig.get_paths().items() if key in ("purelib", "platlib")}
)
OWN_PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
WRAPPING_LIBRARIES = ("equinox", "flax", "jax")
LONGEST_SEARCH = 500
# The names of the functions that JAX's transformations return: they have the name of the user's function otherwise.
TRANSFORMATIONS = {
    "grad_f": "grad",
    "value_and_grad_f": "value_and_grad",
    "vmap_f": "vmap",
    "jacfun": "jacobian",
    "fun_remat": "checkpoint",
}
START_FOLDER = os.getcwd()


@dataclass(frozen=True)
class Origin:
    """A function by name and place. `line` is 0 where there is no Python source."""

    name: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """As "train.py:41"; relative to where the run started for files below that folder."""
        return place(self.file, self.line)

    @property
    def is_library(self) -> bool:
        """Whether a library or Python defines it, and not the user."""
        return is_library(self.file)


def place(file: str, line: int) -> str:
    """As "train.py:41"; "" without a file."""
    if not file:
        return ""
    inside = file.startswith(os.path.join(START_FOLDER, ""))
    return f"{os.path.relpath(file, START_FOLDER) if inside else os.path.basename(file)}:{line}"


def is_library(file: str) -> bool:
    """Whether a file belongs to an installed package, the standard library, Aerogel, or to no file at all."""
    marks = ("/site-packages/", "/dist-packages/")
    return (
        not file
        or file.startswith("<frozen")
        or file.startswith((*LIBRARY_PATHS, OWN_PATH))
        or any(mark in file.replace(os.sep, "/") for mark in marks)
    )


def origin_of(fun: Any) -> Origin:
    """The user's function in `fun`, if it can be found by looking; else the function itself."""
    name = name_of(fun)
    code = code_of(fun)
    if code is not None and not is_library(code.co_filename):
        return Origin(name, code.co_filename, code.co_firstlineno)
    if root_module(fun) in WRAPPING_LIBRARIES:
        inner = next((f for f in reachable([fun]) if not is_library(f.__code__.co_filename)), None)
        if inner is not None:
            return Origin(own_name(inner), inner.__code__.co_filename, inner.__code__.co_firstlineno)
    return Origin(name, code.co_filename if code else "", code.co_firstlineno if code else 0)


def name_of(fun: Any) -> str:
    """Its name, inside the names of JAX's transformations of it: "grad(loss)", "vmap(grad(loss))"."""
    name = own_name(fun)
    around = []
    while "__wrapped__" in getattr(fun, "__dict__", {}):
        # JAX's traceback boundary stands around what most transformations return.
        codes = [f.__code__.co_name for f in (fun, *parts(fun)) if isinstance(f, types.FunctionType)]
        around += [TRANSFORMATIONS[code] for code in codes if code in TRANSFORMATIONS][:1]
        fun = fun.__dict__["__wrapped__"]
    return "(".join([*around, name]) + ")" * len(around)


def own_name(fun: Any) -> str:
    """The name; with the class for what would say nothing without: "Block.__call__"."""
    name = str(getattr(fun, "__name__", None) or type(fun).__name__)
    return str(getattr(fun, "__qualname__", name)).rpartition("<locals>.")[2] if name == "__call__" else name


def origin_in(name: str, arguments: Any) -> Origin | None:
    """The user's function of that name among the static arguments of a call; None if it is not there."""
    for found in reachable(arguments):
        if found.__name__ == name and not is_library(found.__code__.co_filename):
            return Origin(name, found.__code__.co_filename, found.__code__.co_firstlineno)
    return None


def user_line() -> str:
    """The user's line that is being run in this thread, "" if it is none of the user's."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def code_of(fun: Any) -> types.CodeType | None:
    """The code behind the names that wrappers keep: `__wrapped__`, a partial's function, a method, `__call__`."""
    for _ in range(20):
        if isinstance(fun, types.MethodType):
            fun = fun.__func__
        elif "__wrapped__" in getattr(fun, "__dict__", {}):
            fun = fun.__dict__["__wrapped__"]
        elif isinstance(fun, functools.partial):
            fun = fun.func
        elif isinstance(fun, types.FunctionType):
            return fun.__code__
        else:
            fun = vars(type(fun)).get("__call__")
    return None


def root_module(fun: Any) -> str:
    """The top-level package of the outermost function: who wrapped. A partial belongs to what it calls."""
    while isinstance(fun, functools.partial) and "__wrapped__" not in fun.__dict__:
        fun = fun.func
    module = fun.__module__ if isinstance(fun, types.FunctionType) else type(fun).__module__
    if isinstance(fun, types.FunctionType):  # `functools.wraps` copies `__module__`, but not the globals
        module = fun.__globals__.get("__name__", module)
    return str(module).partition(".")[0]


def reachable(roots: Iterable[Any]) -> Iterator[types.FunctionType]:
    """Functions that `roots` hold, nearest first."""
    queue = deque(roots)
    seen: set[int] = set()
    while queue and len(seen) < LONGEST_SEARCH:
        value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            yield value
        queue.extend(parts(value))


def parts(value: Any) -> list[Any]:
    """What a value holds that may hold a function; nothing for arrays and foreign objects."""
    match value:
        case types.FunctionType():
            cells = value.__closure__ or ()
            wrapped = [value.__dict__["__wrapped__"]] if "__wrapped__" in value.__dict__ else []
            return wrapped + [cell.cell_contents for cell in cells if is_filled(cell)]
        case types.MethodType():
            return [value.__func__]
        case functools.partial():
            return [value.func, *value.args, *value.keywords.values()]
        case tuple() | list():
            return list(value)
        case dict():
            return list(value.values())
        case _:
            pass
    if type(value).__module__.partition(".")[0] in WRAPPING_LIBRARIES:
        return list(getattr(value, "__dict__", {}).values())
    return []


def is_filled(cell: types.CellType) -> bool:
    """Whether a closure's cell has a value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
