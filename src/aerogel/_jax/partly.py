"""Functions of some of their arguments: what is moved, transposed or differentiated, while the others stay."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import source_info_util
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
    """Results of `f` and their tangents; tangents may be zeros that are known by type (`ad.Zero`).

    For the rule of an operation: what is computed stands under the operation's named scopes, with no `jvp` added.
    """
    moved = [k for k, t in enumerate(tangents) if type(t) is not ad.Zero]
    scoped = source_info_util.set_name_stack(source_info_util.current_name_stack())(of_some(f, primals, moved))
    return jax.jvp(scoped, [primals[k] for k in moved], [tangents[k] for k in moved])


def pulled(f: Function, cotangents: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Cotangents of those arguments of `f` that are not known, in which it is linear; None for the others.

    For the rule of an operation that is transposed.
    """
    linear = [k for k, x in enumerate(args) if ad.is_undefined_primal(x)]
    types = [jax.ShapeDtypeStruct(args[k].aval.shape, args[k].aval.dtype) for k in linear]
    found = jax.linear_transpose(of_some(f, args, linear), *types)([ad.instantiate_zeros(ct) for ct in cotangents])
    outs: list[Any] = [None] * len(args)
    for k, ct in zip(linear, found, strict=True):
        outs[k] = ct
    return outs
