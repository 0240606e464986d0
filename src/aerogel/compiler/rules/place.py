"""Where a function is written."""

from typing import Any


def place_of(function: Any) -> str:
    """File and line of a function, as "file.py:12"; "" for what has no Python code."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
