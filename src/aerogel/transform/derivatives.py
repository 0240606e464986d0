"""Derivatives beside gradients: products with tangents and cotangents, Jacobians and Hessians, of anything.

All of them divide arguments and results alike: what is differentiated are the inexact arrays that are not frozen. The
rest of an argument is a constant, the rest of a result comes back as it is, and both have None for a tangent.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

import jax

from aerogel import _jax

from ._part import Part
from ._static import hide, reveal
from .early import in_time

_jax.exclude_from_tracebacks(__file__)

Argnums = int | Sequence[int]
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class _Flat:
    """A function from the chosen leaves of its arguments to the chosen leaves of its result, for JAX to transform."""

    def __init__(
        self, f: Callable[..., Any], args: Sequence[Any], kwargs: Any, argnums: Sequence[int], has_aux: bool
    ) -> None:
        _jax.check_callable(f)
        self.parts = [Part(args[i]) for i in argnums]
        self.chosen = tuple(part.chosen for part in self.parts)
        self.out: Part
        self._f, self._args, self._kwargs, self._argnums, self._has_aux = f, args, kwargs, argnums, has_aux

        @_jax.like(f)
        def function(*chosen: Any) -> Any:
            return self._call(*chosen)

        self.function = in_time(function)

    def _call(self, *chosen: Any) -> Any:
        full = list(self._args)
        for i, part, leaves in zip(self._argnums, self.parts, chosen, strict=True):
            full[i] = part.whole(leaves)
        out = self._f(*full, **self._kwargs)
        out, aux = out if self._has_aux else (out, None)
        self.out = Part(out)
        return list(self.out.chosen), (hide(self.out.rest), hide(aux))

    def value(self, chosen: Sequence[Any], rest: Any) -> Any:
        """The result of the function, put together; a pair with the auxiliary value if there is one."""
        others, aux = reveal(rest)
        self.out = self.out.with_leaves(chosen, others)  # no tracers of the transformation in it any more
        whole = self.out.whole(chosen)
        return (whole, aux) if self._has_aux else whole


@overload
def jvp(
    f: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False
) -> tuple[R, Any]: ...
@overload
def jvp(
    f: Callable[..., tuple[R, A]], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]
) -> tuple[R, Any, A]: ...
def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The result of `f` and its derivative in one direction: `jax.jvp` for arguments and results with anything in.

    Args:
        f: a function.
        primals: its arguments.
        tangents: for each argument a tree like it with the direction; None, for a leaf or more, stands for zeros, and
            what ends up at values that have no tangent is not looked at. What `ag.grad` returns is such a tree.
        has_aux: whether `f` returns a pair, of which the second part is not differentiated but returned third.

    Returns:
        The result, and its tangent: a tree like it with None for what has none.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> ag.jvp(lambda x, f: f(x), (3.0, jnp.square), (1.0, None))
    (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    flat = _Flat(f, primals, {}, range(len(primals)), has_aux)
    directions = tuple(part.of_tree(tangent) for part, tangent in zip(flat.parts, tangents, strict=True))
    out, out_tangents, rest = jax.jvp(flat.function, flat.chosen, directions, has_aux=True)
    return _and_tangent(flat, out, rest, flat.out.tree_of(out_tangents))


def _and_tangent(flat: _Flat, out: Any, rest: Any, tangent: Any) -> Any:
    value = flat.value(out, rest)
    return (value[0], tangent, value[1]) if flat._has_aux else (value, tangent)


@overload
def linearize(f: Callable[..., R], *primals: Any, has_aux: Literal[False] = False) -> tuple[R, Callable[..., Any]]: ...
@overload
def linearize(
    f: Callable[..., tuple[R, A]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[..., Any], A]: ...
def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The result of `f`, and the linear function from tangents to the result's tangent, as `jax.linearize` gives.

    Args:
        f: a function.
        *primals: its arguments.
        has_aux: as for `jvp`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> out, tangent_of = ag.linearize(lambda x, f: f(x), 3.0, jnp.square)
    >>> float(tangent_of(2.0, None))
    12.0
    """
    flat = _Flat(f, primals, {}, range(len(primals)), has_aux)
    out, linear, rest = jax.linearize(flat.function, *flat.chosen, has_aux=True)

    def tangent_of(*tangents: Any) -> Any:
        directions = tuple(part.of_tree(tangent) for part, tangent in zip(flat.parts, tangents, strict=True))
        return flat.out.tree_of(linear(*directions))

    return _and_tangent(flat, out, rest, tangent_of)


@overload
def vjp(
    f: Callable[..., R], *primals: Any, has_aux: Literal[False] = False
) -> tuple[R, Callable[[Any], tuple[Any, ...]]]: ...
@overload
def vjp(
    f: Callable[..., tuple[R, A]], *primals: Any, has_aux: Literal[True]
) -> tuple[R, Callable[[Any], tuple[Any, ...]], A]: ...
def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The result of `f`, and the function from cotangents of it to those of the arguments, as `jax.vjp` gives.

    Args:
        f: a function.
        *primals: its arguments.
        has_aux: as for `jvp`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> out, cotangents_of = ag.vjp(lambda x, f: f(x), 3.0, jnp.square)
    >>> cotangents_of(1.0)
    (Array(6., dtype=float32, weak_type=True), None)
    """
    flat = _Flat(f, primals, {}, range(len(primals)), has_aux)
    out, pullback, rest = jax.vjp(flat.function, *flat.chosen, has_aux=True)
    value = flat.value(out, rest)

    def cotangents_of(cotangent: Any) -> Any:
        given = flat.out.of_tree(cotangent)
        return tuple(part.tree_of(found) for part, found in zip(flat.parts, pullback(given), strict=True))

    return (value[0], cotangents_of, value[1]) if has_aux else (value, cotangents_of)


def _jacobian(
    transform: Callable[..., Any], f: Callable[..., Any], argnums: Argnums, has_aux: bool, options: Any
) -> Any:
    several = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @_jax.like(f)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        flat = _Flat(f, args, kwargs, several, has_aux)
        found, rest = transform(flat.function, tuple(range(len(several))), has_aux=True, **options)(*flat.chosen)
        trees = [
            tuple(part.tree_of(grads) for part, grads in zip(flat.parts, of_result, strict=True)) for of_result in found
        ]
        result = flat.out.tree_of([each[0] if isinstance(argnums, int) else each for each in trees])
        return (result, reveal(rest)[1]) if has_aux else result

    return jacobian


def jacfwd(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, *, holomorphic: bool = False
) -> Callable[P, Any]:
    """A function that returns the Jacobian of `f`, column by column: `jax.jacfwd` for arguments with anything in.

    The result is a tree like that of `f`, with a tree like the argument in the place of each inexact array, and None
    in all other places of both.

    Args:
        f: a function.
        argnums: the argument to differentiate by, or several: then there is a tuple for each result.
        has_aux: as for `jvp`; then the result is a pair.
        holomorphic: as for `jax.jacfwd`.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> print(ag.jacfwd(lambda x, f: f(x))(jnp.arange(2.0), jnp.square))
    [[0. 0.]
     [0. 2.]]
    """
    return _jacobian(jax.jacfwd, f, argnums, has_aux, {"holomorphic": holomorphic})


def jacrev(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, *, holomorphic: bool = False
) -> Callable[P, Any]:
    """What `jacfwd` returns, row by row: cheaper where results are fewer than arguments.

    Args and result are those of `jacfwd`.
    """
    return _jacobian(jax.jacrev, f, argnums, has_aux, {"holomorphic": holomorphic})


def hessian(
    f: Callable[P, Any], argnums: Argnums = 0, has_aux: bool = False, *, holomorphic: bool = False
) -> Callable[P, Any]:
    """A function that returns the second derivatives of `f`: `jacfwd` of `jacrev`.

    Args are those of `jacfwd`. The result has a tree like the argument in each place of a tree like the argument.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> print(ag.hessian(lambda x, how: how(x**3))(jnp.arange(2.0), jnp.sum))
    [[0. 0.]
     [0. 6.]]
    """
    inner = jacrev(f, argnums, has_aux, holomorphic=holomorphic)
    return jacfwd(inner, argnums, has_aux, holomorphic=holomorphic)
