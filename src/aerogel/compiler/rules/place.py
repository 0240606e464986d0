"""Where the function under a decorator is written, and what its rule is called."""

import inspect
from typing import Any

from ..._errors import UsageError
from .errors import RuleError

_OWN = __name__.partition(".")[0] + "."


def place_of(function: Any) -> str:
    """File and line of a function, as "file.py:12"; "" for what has no Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"


def is_own(function: Any) -> bool:
    """Whether a function is one of Aerogel's."""
    return str(getattr(function, "__module__", "")).startswith(_OWN)


def name_of(function: Any, decorator: str) -> str:
    """The function's name with hyphens, which its rule has in reports unless told."""
    said = getattr(function, "__name__", "").strip("_").replace("_", "-")
    if not said or said == "<lambda>":
        raise UsageError(argument="name", got=None, wanted="a name, since the function has none", function=decorator)
    return said


def without_parentheses(function: Any, what: str, call: str) -> RuleError:
    """The error of a decorator that was given the function at once, where it is called first."""
    said, line = getattr(function, "__name__", repr(function)).replace("_", "-"), place_of(function)
    return RuleError(rule=said, what=what, where=line, to_fix=f"write {call} above it")
