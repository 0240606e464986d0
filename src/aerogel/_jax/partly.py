"""Functions of some of their arguments: what is moved, transposed or differentiated, while the others stay."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.interpreters import ad

Function = Callable[..., Any]


def of_some(f: Function, args: Sequence[Any], places: Sequence[int]) -> Function:
    """`f` as a function of its arguments at `places`; the others are those of `args`."""

    def of_these(*some: Any) -> Any:
        full = list(args)
        for k, x in zip(places, some, strict=True):
            full[k] = x
        return f(*full)

    return of_these


def pushed(f: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Results of `f` and their tangents; tangents may be zeros that are known by type (`ad.Zero`)."""
    moved = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]
    return jax.jvp(of_some(f, primals, moved), [primals[k] for k in moved], [tangents[k] for k in moved])
