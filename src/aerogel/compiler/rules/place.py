"""Where a function is written."""

import inspect
from typing import Any

_OWN = __name__.partition(".")[0] + "."


def place_of(function: Any) -> str:
    """File and line of a function, as "file.py:12"; "" for what has no Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"


def is_own(function: Any) -> bool:
    """Whether a function is one of Aerogel's."""
    return str(getattr(function, "__module__", "")).startswith(_OWN)
