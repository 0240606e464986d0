"""What a function would return, and its program, without running it."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from aerogel import _jax

from ._static import between, hide, reveal

_jax.exclude_from_tracebacks(__file__)

P = ParamSpec("P")
R = TypeVar("R")


def eval_shape(f: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """The result of `f` with shapes and dtypes in the place of arrays, and all else as it is: `jax.eval_shape`.

    Modules need no help in `jax.eval_shape`. What this adds: values that are no arrays may stand in the arguments and
    in the result. A model of shapes, for `ag.load`, costs no memory: `ag.eval_shape(Model, key)`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.eval_shape(lambda x, f: (f(x), "name"), jnp.ones(3), jnp.sum)
    (ShapeDtypeStruct(shape=(), dtype=float32), 'name')
    """
    return reveal(jax.eval_shape(between(f), *hide(args), **hide(kwargs)))


def make_jaxpr(
    f: Callable[P, Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Any, int]] | None = None,
    return_shape: bool = False,
) -> Callable[P, Any]:
    """A function that returns the program of `f` for its arguments: `jax.make_jaxpr`, with anything in them.

    The program is the one that `f` stands for, not optimised: see `explain` for what becomes of it.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> len(ag.make_jaxpr(lambda x, f: f(x))(jnp.ones(3), jnp.sin).eqns)
    1
    """
    make: Any = jax.make_jaxpr  # its overloads know `return_shape` as True and False, not as a bool
    inner = make(between(f), static_argnums, axis_env, return_shape)
    static = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    @_jax.like(f)
    def program_of(*args: Any, **kwargs: Any) -> Any:
        found = inner(*(x if i in static else hide(x) for i, x in enumerate(args)), **hide(kwargs))
        return (found[0], reveal(found[1])) if return_shape else found

    return program_of
