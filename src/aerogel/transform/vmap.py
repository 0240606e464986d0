"""`vmap`: batching over arguments with anything in them, with axes by prefix, by name or by a function."""

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax

from aerogel import _jax
from aerogel._errors import UsageError

from ._static import between, hide, reveal

_jax.exclude_from_tracebacks(__file__)

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    f: Callable[P, R],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Callable[P, R]:
    """A function that maps `f` over an axis of its arguments: `jax.vmap` for arguments with anything in them.

    Values that are no arrays reach `f` as they are, in all arguments, and may stand in the result.

    Args:
        f: a function, or a method of a module.
        in_axes: what `jax.vmap` takes (an integer, None, or for each argument a tree of these that begins like it);
            or a dict from names of arguments to such trees, where arguments that are not named are not mapped. A
            function in the place of an axis is asked for each array there: it returns the axis or None.
        out_axes: what `jax.vmap` takes.
        axis_name: a name for the mapped axis, for collectives in `f`.
        axis_size: its size, where no argument tells.
        spmd_axis_name: as for `jax.vmap`.

    Raises:
        UsageError: at a call: `in_axes` names an argument that `f` does not have.
        ValueError: what `jax.vmap` raises, for sizes that differ, say.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> scale = ag.vmap(lambda x, factor, how: how(x * factor), in_axes={"x": 0})
    >>> scale(jnp.arange(3.0), 2.0, jnp.negative)
    Array([-0., -2., -4.], dtype=float32)
    """
    _jax.check_callable(f)
    options = {"axis_name": axis_name, "axis_size": axis_size, "spmd_axis_name": spmd_axis_name}

    @_jax.like(f)
    def batched(*args: Any, **kwargs: Any) -> Any:
        if isinstance(in_axes, Mapping):
            return _by_name(f, in_axes, out_axes, options, args, kwargs)
        axes = _asked(tuple(in_axes) if isinstance(in_axes, list) else in_axes, hide(args))
        return reveal(jax.vmap(between(f), axes, out_axes, **options)(*hide(args), **hide(kwargs)))

    return batched


def _asked(axes: Any, values: Any) -> Any:
    """A prefix tree of axes in which functions have been asked for those of the arrays."""
    if not any(map(callable, jax.tree.leaves(axes))):
        return axes

    def axis(given: Any, value: Any) -> Any:
        return jax.tree.map(given, value) if callable(given) else given

    return jax.tree.map(axis, axes, values, is_leaf=lambda given: given is None)


def _by_name(f: Any, in_axes: Mapping[str, Any], out_axes: Any, options: Any, args: Any, kwargs: Any) -> Any:
    signature = _jax.signature(f)
    if signature is None:
        raise UsageError(
            argument="in_axes", got=in_axes, wanted="a tuple: this function's arguments have no names", function="vmap"
        )
    bound = signature.bind(*args, **kwargs)
    unknown = [name for name in in_axes if name not in signature.parameters]
    if unknown:
        raise UsageError(argument="in_axes", got=unknown[0], wanted=list(signature.parameters), function="vmap")
    names = list(bound.arguments)

    @_jax.like(f)
    def of_named(*values: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.arguments.update(reveal(dict(zip(names, values, strict=True))))
        return hide(f(*given.args, **given.kwargs))

    values = [hide(bound.arguments[name]) for name in names]
    axes = tuple(_asked(in_axes.get(name), value) for name, value in zip(names, values, strict=True))
    return reveal(jax.vmap(of_named, axes, out_axes, **options)(*values))
