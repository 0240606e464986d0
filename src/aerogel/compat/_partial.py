"""`Partial`: a function with some of its arguments, as a module."""

from collections.abc import Callable
from typing import Any

from aerogel.module import Module


class Partial(Module):
    """`functools.partial` as a module: the arrays in the function and in its arguments are data."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def __init__(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.func = func
        self.args = args
        self.keywords = kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*self.args, *args, **kwargs, **self.keywords)
