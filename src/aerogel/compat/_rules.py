"""Derivatives by rules, in Equinox's form: rules take all arguments, and None stands for what is not differentiated."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel.transform._static import Static, reveal

from ._errors import CompatError
from ._filters import combine, partition
from ._leaves import held, is_array, is_inexact_array

_jax.exclude_from_tracebacks(__file__)

_Zero = jax.custom_derivatives.SymbolicZero


class filter_custom_jvp:
    """A function whose derivative is given by `def_jvp`. Its result holds arrays only.

    Keyword arguments are not differentiated.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        _jax.like(fn)(self)

        def inner(arrays: Any, rest: Any) -> Any:
            args, kwargs = reveal(combine(arrays, rest.value))
            return fn(*args, **kwargs)

        self._inner = jax.custom_jvp(inner, nondiff_argnums=(1,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays, rest = partition((args, kwargs), is_array)
        return self._inner(arrays, _Same(rest))

    def def_jvp(self, fn_jvp: Callable[..., Any]) -> Callable[..., Any]:
        """The rule: from `(primals, tangents, **kwargs)` to the result and its tangent."""

        def rule(rest: Any, primals: Any, tangents: Any) -> Any:
            (arrays,), (directions,) = primals, tangents
            args, kwargs = combine(arrays, rest.value)
            found, named = jax.tree.map(_or_none, directions)
            if jax.tree.leaves(named):
                raise CompatError(
                    what="keyword arguments have no derivative here, and one is differentiated.",
                    place=f"a call of `{getattr(self, '__name__', 'f')}`, which `filter_custom_jvp` made",
                    to_fix="pass it by position, or jax.lax.stop_gradient of it",
                )
            out, tangent = fn_jvp(args, found, **kwargs)
            return out, jax.tree.map(_or_zeros, tangent, out, is_leaf=lambda x: x is None)

        self._inner.defjvp(rule, symbolic_zeros=True)
        return fn_jvp

    def defjvp(self, fn_jvp: Callable[..., Any]) -> None:
        """The rule, with zeros for tangents of inexact arrays that are zero. Deprecated by Equinox."""
        warnings.warn("`filter_custom_jvp.defjvp` is deprecated: use `def_jvp`", stacklevel=2)

        def rule(args: Any, tangents: Any, **kwargs: Any) -> Any:
            return fn_jvp(args, jax.tree.map(_materialised, args, tangents), **kwargs)

        self.def_jvp(rule)


class filter_custom_vjp:
    """A function whose gradient by its first argument is given by `def_fwd` and `def_bwd`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        _jax.like(fn)(self)
        self._fwd: Any = None
        self._bwd: Any = None

        def inner(chosen: Any, others: Any, rest: Any) -> Any:
            vjp_arg, args, kwargs = _whole(chosen, others, rest)
            return _result(fn(vjp_arg, *args, **kwargs))

        def forward(chosen: Any, others: Any, rest: Any) -> Any:
            perturbed = jax.tree.map(lambda x: x.perturbed, chosen)
            chosen, others = jax.tree.map(lambda x: x.value, (chosen, others))
            vjp_arg, args, kwargs = _whole(chosen, others, rest)
            perturbed = jax.tree.map(lambda p, _: bool(p), perturbed, vjp_arg, is_leaf=lambda p: p is None)
            out, residuals = self._fwd(perturbed, vjp_arg, *args, **kwargs)
            return _result(out), (held(residuals), chosen, others, _Same(perturbed))

        def backward(rest: Any, kept: Any, cotangent: Any) -> Any:
            residuals, chosen, others, perturbed = kept
            vjp_arg, args, kwargs = _whole(chosen, others, rest)
            given = jax.tree.map(_or_none, cotangent[0], is_leaf=lambda x: isinstance(x, _Zero))
            found = self._bwd(reveal(residuals), given, perturbed.value, vjp_arg, *args, **kwargs)
            return jax.tree.map(_or_zeros, found, chosen, is_leaf=lambda x: x is None), None

        self._inner = jax.custom_vjp(inner, nondiff_argnums=(2,))
        self._inner.defvjp(forward, backward, symbolic_zeros=True)

    def __call__(self, vjp_arg: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self._fwd is None or self._bwd is None:
            missing = [each for each, rule in (("def_fwd", self._fwd), ("def_bwd", self._bwd)) if rule is None]
            name = getattr(self, "__name__", "f")
            raise CompatError(
                what=f"a `filter_custom_vjp` function was called before its `{missing[0]}`.",
                place=f"a call of `{name}`",
                to_fix=f"give it its rules first: {' and '.join(f'@{name}.{each}' for each in missing)}",
            )
        chosen, other = partition(vjp_arg, is_inexact_array)
        others, rest = partition((other, args, kwargs), is_array)
        out, fixed, static = self._inner(chosen, jax.lax.stop_gradient(others), _Same(rest))
        return combine(out, fixed, static.value)

    def def_fwd(self, fn_fwd: Callable[..., Any]) -> None:
        """From `(perturbed, vjp_arg, *args, **kwargs)` to the result and whatever `def_bwd` needs."""
        self._fwd = fn_fwd

    def def_bwd(self, fn_bwd: Callable[..., Any]) -> None:
        """From `(residuals, gradient of the result, perturbed, vjp_arg, *args, **kwargs)` to that of `vjp_arg`."""
        self._bwd = fn_bwd


class _Same(Static):
    """A tree that holds no tracer, compared by identity of its leaves' values, as a static argument."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        self.value = value
        leaves, structure = jax.tree.flatten(value)
        self.key = structure, tuple(Static(leaf).key for leaf in leaves)

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and self.key == other.key

    __hash__ = Static.__hash__


jax.tree_util.register_pytree_node(_Same, lambda node: ((), node), lambda node, _: node)


def _whole(chosen: Any, others: Any, rest: Any) -> Any:
    other, args, kwargs = combine(others, rest.value)
    return combine(chosen, other), args, kwargs


def _result(out: Any) -> Any:
    arrays, rest = partition(out, is_array)
    return *partition(arrays, is_inexact_array), _Same(rest)


def _or_none(tangent: Any) -> Any:
    return None if isinstance(tangent, _Zero) else tangent


def _or_zeros(tangent: Any, primal: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, primal) if tangent is None and primal is not None else tangent


def _materialised(primal: Any, tangent: Any) -> Any:
    return jnp.zeros_like(primal) if tangent is None and is_inexact_array(primal) else tangent
