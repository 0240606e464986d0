"""`custom_jvp` and `custom_vjp`: derivatives by rules of one's own, with anything in the arguments."""

import types
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from aerogel import _jax

from ._static import Static, between, hide, reveal

_jax.exclude_from_tracebacks(__file__)

P = ParamSpec("P")
R = TypeVar("R")


class _Custom(Generic[P, R]):
    """What both kinds have in common: they are called, and become methods, as functions do."""

    def __init__(self, f: Callable[P, R], nondiff_argnums: Sequence[int], transform: Callable[..., Any]) -> None:
        _jax.like(f)(self)
        self._nondiff = tuple(nondiff_argnums)
        self._inner = transform(between(f), nondiff_argnums=self._nondiff)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        given = [x if i in self._nondiff else hide(x) for i, x in enumerate(args)]
        return reveal(self._inner(*given, **hide(kwargs)))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


class custom_jvp(_Custom[P, R]):
    """A function whose derivative is given by `defjvp`: `jax.custom_jvp`.

    Modules need no help in `jax.custom_jvp`. What this adds: values that are no arrays may stand in the arguments and
    in the result, and it works on methods. To the rule their tangents are None, and what it returns for them is not
    looked at.

    Args:
        f: a function.
        nondiff_argnums: positions of arguments that the rule gets first, without tangents.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> @ag.custom_jvp
    ... def apply(x, how):
    ...     return how(x)
    >>> @apply.defjvp
    ... def rule(primals, tangents):
    ...     return apply(*primals), 10.0 * tangents[0]
    >>> float(ag.grad(apply)(1.0, jnp.sin))
    10.0
    """

    def __init__(self, f: Callable[P, R], nondiff_argnums: Sequence[int] = ()) -> None:
        super().__init__(f, nondiff_argnums, jax.custom_jvp)

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """The rule: from arguments without tangents, primals and tangents to the result and its tangent."""

        @_jax.like(jvp)
        def rule(*args: Any) -> Any:
            *nondiff, primals, tangents = args
            out, tangent = jvp(*nondiff, reveal(primals), _without(tangents))
            return hide(out), _in_place(tangent, out)

        self._inner.defjvp(rule, symbolic_zeros)
        return jvp


class custom_vjp(_Custom[P, R]):
    """A function whose gradient is given by `defvjp`: `jax.custom_vjp`.

    What this adds to `jax.custom_vjp` is what `custom_jvp` adds to JAX's. Cotangents of values that are no arrays are
    None, and None may stand for zeros in what `bwd` returns: a gradient of `ag.grad` can be returned as it is.

    Args:
        f: a function.
        nondiff_argnums: positions of arguments that `bwd` gets first, and returns nothing for.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> @ag.custom_vjp
    ... def apply(x, how):
    ...     return how(x)
    >>> apply.defvjp(lambda x, how: (how(x), x), lambda x, g: (10.0 * g, None))
    >>> float(ag.grad(apply)(1.0, jnp.sin))
    10.0
    """

    def __init__(self, f: Callable[P, R], nondiff_argnums: Sequence[int] = ()) -> None:
        super().__init__(f, nondiff_argnums, jax.custom_vjp)

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False) -> None:
        """The rules: `fwd` from arguments to the result and anything; `bwd` from that and a cotangent to cotangents."""

        @_jax.like(fwd)
        def forward(*args: Any) -> Any:
            out, kept = fwd(*reveal(args))
            return hide(out), hide(kept)

        @_jax.like(bwd)
        def backward(*args: Any) -> Any:
            *nondiff, kept, cotangent = args
            # JAX takes anything where there is no array to have a cotangent.
            return tuple(bwd(*nondiff, reveal(kept), _without(cotangent)))

        self._inner.defvjp(forward, backward, symbolic_zeros)


def _without(tree: Any) -> Any:
    """A tree of tangents or cotangents, with None for what is no array."""
    return jax.tree.map(lambda x: None if type(x) is Static else x, tree, is_leaf=lambda x: type(x) is Static)


def _in_place(tangent: Any, out: Any) -> Any:
    """A tangent in the structure that a result has when what is no array in it is hidden."""
    leaves, structure = jax.tree.flatten(out)
    found = structure.flatten_up_to(tangent)
    return structure.unflatten(
        [hidden if type(hidden := hide(leaf)) is Static else each for leaf, each in zip(leaves, found, strict=True)]
    )
