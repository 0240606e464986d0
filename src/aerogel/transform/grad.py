"""Gradients with respect to the parts of arguments that have one: their inexact arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import jax

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.module import Where
from aerogel.module._frozen import is_inexact

from ._errors import GradientError
from ._part import Part
from ._static import is_static
from .early import in_time

_jax.exclude_from_tracebacks(__file__)

Argnums = int | Sequence[int]
P = ParamSpec("P")
X = TypeVar("X")
V = TypeVar("V")
A = TypeVar("A")
_OF = "__aerogel_gradient_of__"


@overload
def value_and_grad(
    f: Callable[Concatenate[X, P], tuple[V, A]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], tuple[tuple[V, A], X]]: ...
@overload
def value_and_grad(
    f: Callable[Concatenate[X, P], V],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    *,
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], tuple[V, X]]: ...
@overload
def value_and_grad(
    f: Callable[P, V],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[V, Any]]: ...
def value_and_grad(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """A function that returns the value of `f` and its gradient: `jax.value_and_grad` for arguments with anything in.

    The gradient has the structure of the argument, with None for all that has none: integers, booleans, keys, frozen
    parameters, what `wrt` does not mean, and values that are no arrays, which may stand in every argument.

    Args:
        f: a function that returns a real scalar, or with `has_aux` a pair of one and anything at all.
        argnums: the argument to differentiate by, or several: then there is a tuple of gradients.
        has_aux: whether `f` returns a pair; then the value is one too.
        wrt: which parts of the arguments, as for `ag.at`: a type, a path or pattern, a predicate on path and value, a
            function from the argument to parts of it, several of these. Paths begin below the argument.
        holomorphic: as for `jax.grad`: all that is differentiated by is complex.
        allow_int: integers and booleans have gradients, of dtype float0, as for `jax.grad`.

    Raises:
        GradientError: at a call: nothing in the arguments has a gradient.
        PathError: at a call: `wrt` fits nothing.
        TypeError: what `jax.grad` raises, for a result that is no scalar, say.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> def loss(params, activation):
    ...     return activation(params["w"]).sum() * params["steps"]
    >>> value, grads = ag.value_and_grad(loss)({"w": jnp.ones(2), "steps": 3}, jnp.square)
    >>> print(value, grads["w"], grads["steps"])
    6.0 [6. 6.] None
    """
    _jax.check_callable(f)
    positions = _positions(argnums)

    @_jax.like(f)
    def with_gradient(*args: Any, **kwargs: Any) -> Any:
        parts = [Part(_argument(f, args, i), wrt, allow_int) for i in positions]
        if not any(part.chosen for part in parts):
            raise _nothing(f, positions, parts)

        @_jax.like(f)
        def of_chosen(*chosen: Any) -> Any:
            full = list(args)
            for i, part, leaves in zip(positions, parts, chosen, strict=True):
                full[i] = part.whole(leaves)
            return f(*full, **kwargs)

        transformed = jax.value_and_grad(
            in_time(of_chosen), tuple(range(len(parts))), has_aux, holomorphic=holomorphic, allow_int=allow_int
        )
        value, grads = transformed(*(part.chosen for part in parts))
        trees = tuple(part.tree_of(grad) for part, grad in zip(parts, grads, strict=True))
        return value, trees[0] if isinstance(argnums, int) else trees

    return _marked(with_gradient, f, 1)


@overload
def grad(
    f: Callable[Concatenate[X, P], tuple[Any, A]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], tuple[X, A]]: ...
@overload
def grad(
    f: Callable[Concatenate[X, P], Any],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    *,
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[Concatenate[X, P], X]: ...
@overload
def grad(
    f: Callable[P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]: ...
def grad(
    f: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    wrt: Where | None = None,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """A function that returns the gradient of `f`: `jax.grad` for arguments with anything in them.

    Args and errors are those of `value_and_grad`. With `has_aux` the result is a pair of the gradient and the rest.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> class Line(ag.Module):
    ...     slope: object
    ...     offset: object
    >>> line = Line(jnp.array(2.0), jnp.array(1.0))
    >>> grads = ag.grad(lambda line, x: line.slope * x + line.offset, wrt="slope")(line, 3.0)
    >>> print(grads.slope, grads.offset)
    3.0 None
    """
    both: Any = value_and_grad(f, argnums, has_aux, wrt=wrt, holomorphic=holomorphic, allow_int=allow_int)

    @_jax.like(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return _marked(gradient, f, 0 if has_aux else None)


@dataclass(frozen=True)
class GradientOf:
    """What a function that `grad` or `value_and_grad` made is the gradient of.

    Attributes:
        of: the function.
        place: of the gradient in the result; None if it is the result.
    """

    of: Callable[..., Any]
    place: int | None


def gradient_of(f: Any) -> GradientOf | None:
    """What `f` is the gradient of, if `grad` or `value_and_grad` made it."""
    owner, found = getattr(f, "__dict__", {}).get(_OF, (None, None))
    return found if owner is f else None


def _marked(gradient: Any, of: Any, place: int | None) -> Any:
    # With itself beside it: `functools.wraps` copies attributes to functions that are no gradients.
    setattr(gradient, _OF, (gradient, GradientOf(of, place)))
    return gradient


def _positions(argnums: Argnums) -> tuple[int, ...]:
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not positions or not all(isinstance(i, int) for i in positions):
        raise UsageError(argument="argnums", got=argnums, wanted="an integer, or several", function="grad")
    return positions


def _argument(f: Any, args: tuple[Any, ...], i: int) -> Any:
    try:
        return args[i]
    except IndexError:
        name = getattr(f, "__name__", type(f).__name__)
        raise GradientError(
            what=f"there is no positional argument {i} to differentiate by.",
            place=f"`argnums` of `grad({name})`",
            got=f"{len(args)} positional arguments",
            wanted=f"{i + 1} or more" if i >= 0 else f"{-i} or more",
            to_fix="pass the argument by position",
        ) from None


def _nothing(f: Any, positions: tuple[int, ...], parts: Sequence[Part]) -> GradientError:
    name = getattr(f, "__name__", type(f).__name__)
    found = [
        f"argument {i}{path if path.startswith(('.', '[')) or not path else '.' + path}: {_describe(leaf)}"
        for i, part in zip(positions, parts, strict=True)
        for path, leaf in zip(part.paths, part.leaves, strict=True)
    ]
    has_floats = any(is_inexact(leaf) for part in parts for leaf in part.leaves)
    first = "ag.unfreeze what is to be learned" if has_floats else "pass 1.0 for 1"
    return GradientError(
        what="nothing in the arguments has a gradient.",
        place=f"`grad({name})`, arguments {', '.join(map(str, positions))}",
        got="\n".join([*found[:5], *(["..."] if len(found) > 5 else [])]) or "no arrays at all",
        wanted="an array of floating-point numbers that is not frozen",
        to_fix=f"{first}, choose another argument with `argnums`, or other parts with `wrt`",
    )


def _describe(leaf: Any) -> str:
    return repr(leaf) if is_static(leaf) else jax.typeof(leaf).str_short(short_dtypes=True)
