"""`checkpoint`: what a gradient recomputes instead of storing it."""

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

import jax

from aerogel import _jax

from ._static import between, hide, reveal

_jax.exclude_from_tracebacks(__file__)

P = ParamSpec("P")
R = TypeVar("R")


@overload
def checkpoint(
    f: Callable[P, R],
    *,
    prevent_cse: bool = ...,
    policy: Callable[..., bool] | None = ...,
    static_argnums: int | tuple[int, ...] = ...,
) -> Callable[P, R]: ...
@overload
def checkpoint(
    f: None = None,
    *,
    prevent_cse: bool = ...,
    policy: Callable[..., bool] | None = ...,
    static_argnums: int | tuple[int, ...] = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def checkpoint(
    f: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | tuple[int, ...] = (),
) -> Any:
    """A function whose inner values are computed again when its gradient is: `jax.checkpoint`.

    Modules, and their methods, need no help in `jax.checkpoint`. What this adds: values that are no arrays may stand
    in the arguments and in the result, and without `f` it is a decorator.

    Args:
        f: a function.
        prevent_cse: as for `jax.checkpoint`: False inside `scan`, where nothing can be merged.
        policy: which values are stored after all: one of `jax.checkpoint_policies`.
        static_argnums: positions of arguments that are static whatever they hold.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> float(ag.grad(ag.checkpoint(lambda x, f: f(x)))(2.0, jnp.square))
    4.0
    """
    if f is None:
        return partial(checkpoint, prevent_cse=prevent_cse, policy=policy, static_argnums=static_argnums)
    inner = jax.checkpoint(between(f), prevent_cse=prevent_cse, policy=policy, static_argnums=static_argnums)
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    @_jax.like(f)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        given = [x if i in static or i - len(args) in static else hide(x) for i, x in enumerate(args)]
        return reveal(inner(*given, **hide(kwargs)))

    return checkpointed
