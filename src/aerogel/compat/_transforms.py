"""Aerogel's transformations by Equinox's names, for which numbers of Python's are no data."""

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel import transform as ag
from aerogel._errors import UsageError
from aerogel.module import BoundMethod, Module
from aerogel.module._methods import with_methods
from aerogel.transform._static import reveal

from ._filters import combine, partition
from ._leaves import held, holding, is_array, is_inexact_array, without_held

_jax.exclude_from_tracebacks(__file__)

DONATED = {
    "none": (),
    "all": (0, 1, 2, 3),
    "warn": (0, 1, 2, 3),
    "all-except-first": (1, 2, 3),
    "warn-except-first": (1, 2, 3),
}


def filter_jit(fun: Any = None, *, donate: str = "none", **options: Any) -> Any:
    """`ag.jit(fun)`; numbers are static. It optimises, and returns before the result is computed.

    `ag.jit` itself is quicker to call: it need not look for numbers.

    Args:
        fun: a function, a module, a method of one. Without it, a decorator is returned.
        donate: "none", "all", "all-except-first"; "warn" and "warn-except-first" mean the same as these. As in Equinox
            the arrays of `fun` itself are donated too.
        options: other options of `ag.jit`.
    """
    if fun is None:
        return functools.partial(filter_jit, donate=donate, **options)
    _jax.check_callable(fun)
    if donate not in DONATED:
        raise UsageError(argument="donate", got=donate, wanted=list(DONATED), function="filter_jit")
    if isinstance(fun, types.MethodType) and isinstance(fun.__self__, Module):
        callable_: Any = BoundMethod(fun.__func__, fun.__self__)
    else:
        callable_ = fun
    is_plain = jax.tree_util.all_leaves([callable_])

    def inner(first: Any, rest: Any, kwargs: Any, itself: Any) -> Any:
        first, rest, kwargs, itself = reveal((first, rest, kwargs, itself))
        return held((fun if is_plain else itself)(*first, *rest, **kwargs))

    inner.__name__ = str(getattr(fun, "__name__", type(fun).__name__))
    inner.__dict__.update(__signature__=inspect.signature(inner), __wrapped__=fun)
    compiled: Any = ag.jit(inner, donate_argnums=DONATED[donate], **options)

    def divided(args: Any, kwargs: Any) -> Any:
        return *held((args[:1], args[1:], kwargs)), None if is_plain else held(callable_)

    @_jax.like(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        return reveal(compiled(*divided(args, kwargs)))

    call.lower = lambda *args, **kwargs: _Stage(compiled.lower(*divided(args, kwargs)), divided)
    return call


@dataclass(frozen=True)
class _Stage:
    """What was lowered or compiled, which takes its arguments divided: to users it takes what the function takes."""

    stage: Any
    divided: Callable[[Any, Any], Any]

    def compile(self, *args: Any, **kwargs: Any) -> "_Stage":
        return _Stage(self.stage.compile(*args, **kwargs), self.divided)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return reveal(self.stage(*self.divided(args, kwargs)))

    def __getattr__(self, name: str) -> Any:  # `as_text`, `cost_analysis`, `memory_analysis`, ...
        return getattr(self.stage, name)


def filter_value_and_grad(fun: Any = None, *, has_aux: bool = False, **options: Any) -> Any:
    """`ag.value_and_grad(fun)` by the first argument; numbers have no gradient. Without `fun`, a decorator."""
    if fun is None:
        return functools.partial(filter_value_and_grad, has_aux=has_aux, **options)

    @_jax.like(fun)
    def with_gradient(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        chosen, rest = partition(x, is_inexact_array)

        @_jax.like(fun)
        def of_chosen(chosen: Any) -> Any:
            return fun(combine(chosen, rest), *args, **kwargs)

        return ag.value_and_grad(of_chosen, 0, has_aux, **options)(chosen)

    return with_gradient


def filter_grad(fun: Any = None, *, has_aux: bool = False, **options: Any) -> Any:
    """`ag.grad(fun)` by the first argument; numbers have no gradient. Without `fun`, a decorator."""
    if fun is None:
        return functools.partial(filter_grad, has_aux=has_aux, **options)
    both = filter_value_and_grad(fun, has_aux=has_aux, **options)

    @_jax.like(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


@dataclass(frozen=True)
class if_array:
    """A function from a leaf to `axis` if it is an array, and to None else."""

    axis: int

    def __call__(self, x: Any) -> int | None:
        return self.axis if is_array(x) else None


def filter_vmap(
    fun: Any = None, *, in_axes: Any = if_array(0), out_axes: Any = if_array(0), axis_size: Any = None, **options: Any
) -> Any:
    """A function that maps `fun` over an axis of its arguments, by default the first axis of every array.

    Args:
        fun: a function. Without it, a decorator is returned.
        in_axes: an axis, None or a function from a leaf to one of these; or for each argument a tree of these that
            begins like it; or a dict from names of arguments to such trees, where others are mapped by default.
        out_axes: the same for the result.
        axis_size: the size of the axis, where no argument tells.
        options: other options of `jax.vmap`.

    Raises:
        ValueError: `in_axes` names an argument that `fun` does not have.
    """
    if fun is None:
        return functools.partial(filter_vmap, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size, **options)

    @_jax.like(fun)
    def batched(*args: Any) -> Any:
        args = with_methods(args)
        leaves, structure = jax.tree.flatten(args)
        axes = _axes(_by_position(fun, in_axes, args), args)
        mapped = [i for i, axis in enumerate(axes) if axis is not None]
        of_result: list[Any] = []

        def inner(values: Any) -> Any:
            full = list(leaves)
            for i, value in zip(mapped, values, strict=True):
                full[i] = value
            out = fun(*structure.unflatten(full))
            found, out_structure = jax.tree.flatten(out)
            out_leaf_axes = _axes(out_axes, out)
            of_result[:] = [out_structure, out_leaf_axes, [None if is_array(x) else x for x in found]]
            kept = [(x, a) for x, a in zip(found, out_leaf_axes, strict=True)]
            return [x for x, a in kept if a is not None], [x for x, a in kept if a is None and is_array(x)]

        values = [leaves[i] for i in mapped]
        if mapped or axis_size is not None:
            along = ([axes[i] for i in mapped],)
            first, rest = jax.vmap(inner, along, (0, None), axis_size=axis_size, **options)(values)
        else:
            first, rest = inner(values)
        out_structure, out_leaf_axes, fixed = of_result
        firsts, rests = iter(first), iter(rest)
        return out_structure.unflatten(
            [
                jnp.moveaxis(next(firsts), 0, axis) if axis is not None else x if x is not None else next(rests)
                for x, axis in zip(fixed, out_leaf_axes, strict=True)
            ]
        )

    return batched


def _by_position(fun: Any, in_axes: Any, args: tuple[Any, ...]) -> Any:
    if not isinstance(in_axes, Mapping):
        return in_axes
    names = list(inspect.signature(fun).parameters)[: len(args)]
    unknown = [name for name in in_axes if name not in names]
    if unknown:
        raise UsageError(argument="in_axes", got=unknown[0], wanted=names, function="filter_vmap")
    return tuple(in_axes.get(name, if_array(0)) for name in names)


def _axes(spec: Any, tree: Any) -> list[Any]:
    """The axis of each leaf of a tree."""
    found: list[Any] = []

    def below(axis: Any, part: Any) -> None:
        found.extend(axis(leaf) if callable(axis) else axis for leaf in jax.tree.leaves(part))

    jax.tree.map(below, spec, tree, is_leaf=lambda x: x is None)
    return found


def filter_jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], **kwargs: Any) -> Any:
    """`ag.jvp` of `fn`, with `kwargs` as they are; numbers have no tangent. Symbolic zeros come out as zeros."""
    out, tangent = ag.jvp(holding(functools.partial(fn, **kwargs)), held(tuple(primals)), _like(tangents, primals))
    return reveal(out), without_held(tangent)


def _like(tangents: Any, primals: Any) -> Any:
    """Tangents in the structure that primals have when they are held."""
    return tuple(
        jax.tree.map(lambda t, p: t if is_array(p) else held(p), tangent, primal, is_leaf=lambda t: t is None)
        if tangent is not None
        else None
        for tangent, primal in zip(tangents, primals, strict=True)
    )


def filter_vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """`ag.vjp` of `fun`; numbers have no cotangent."""
    found: Any = ag.vjp(holding(fun), *held(primals), has_aux=has_aux)
    out, pullback, *aux = found

    def cotangents_of(cotangent: Any) -> Any:
        return without_held(pullback(_like((cotangent,), (reveal(out),))[0]))

    return (reveal(out), cotangents_of, *reveal(aux))


def _differentiated(transform: Any, fun: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    inner = transform(holding(fun), 0, has_aux)

    @_jax.like(fun)
    def derivative(*args: Any, **kwargs: Any) -> Any:
        result = inner(*held(args), **held(kwargs))
        return (without_held(result[0]), reveal(result[1])) if has_aux else without_held(result)

    return derivative


def filter_jacfwd(fun: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """`ag.jacfwd(fun)` by the first argument; numbers have no derivative."""
    return _differentiated(ag.jacfwd, fun, has_aux)


def filter_jacrev(fun: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """`ag.jacrev(fun)` by the first argument; numbers have no derivative."""
    return _differentiated(ag.jacrev, fun, has_aux)


def filter_hessian(fun: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """`ag.hessian(fun)` by the first argument; numbers have no derivative."""
    return _differentiated(ag.hessian, fun, has_aux)


def filter_checkpoint(fun: Any = None, **options: Any) -> Any:
    """`ag.checkpoint(fun, **options)`; numbers are static. Without `fun`, a decorator."""
    if fun is None:
        return functools.partial(filter_checkpoint, **options)
    inner = ag.checkpoint(holding(fun), **options)

    @_jax.like(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return reveal(inner(*held(args), **held(kwargs)))

    return checkpointed


def filter_eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`ag.eval_shape(fun, *args, **kwargs)`; numbers reach `fun` as they are."""
    return reveal(ag.eval_shape(holding(fun), *held(args), **held(kwargs)))


def filter_make_jaxpr(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the program of `fun`, the shapes of its result, and what in the result is no array."""

    @_jax.like(fun)
    def program_of(*args: Any, **kwargs: Any) -> Any:
        program, out = ag.make_jaxpr(holding(fun), return_shape=True)(*held(args), **held(kwargs))
        shapes, rest = partition(reveal(out), lambda x: hasattr(x, "shape"))
        return program, shapes, rest

    return program_of


class _Array:
    """The class itself stands for an array in the structure of a result."""


class _Converted(Module):
    """A function as a program and the arrays that it closed over, which are data."""

    consts: list[Any]
    program: Any
    out: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = _jax.ClosedJaxpr(self.program, list(self.consts))
        leaves = [x for x in jax.tree.leaves((args, kwargs)) if is_array(x)]
        found = iter(_jax.evaluate(program, leaves))
        leaves, structure = self.out
        return structure.unflatten([next(found) if leaf is _Array else leaf for leaf in leaves])


def filter_closure_convert(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fn` for arguments like these, as a module: what it closes over is data of it."""
    program, shapes, rest = filter_make_jaxpr(fn)(*args, **kwargs)
    whole, structure = jax.tree.flatten(combine(jax.tree.map(lambda _: _Array, shapes), rest))
    return _Converted(list(program.consts), program.jaxpr, (tuple(whole), structure))


def filter_shard(x: Any, device_or_shardings: Any) -> Any:
    """The tree with its arrays in a sharding, or on a device: `jax.lax.with_sharding_constraint`."""
    if isinstance(device_or_shardings, jax.Device):
        device_or_shardings = jax.sharding.SingleDeviceSharding(device_or_shardings)
    arrays, rest = partition(x, is_array)
    return combine(jax.lax.with_sharding_constraint(arrays, device_or_shardings), rest)


def filter_pure_callback(callback: Callable[..., Any], *args: Any, result_shape_dtypes: Any, **options: Any) -> Any:
    """The result of `callback`, called by the compiled program: `jax.pure_callback` with anything in the arguments.

    Args:
        callback: a function of Python's.
        args: its arguments.
        result_shape_dtypes: a tree like its result, with shapes for arrays.
        options: `sharding`, `vectorized` and `vmap_method` as for `jax.pure_callback`; others are arguments.
    """
    own = {name: options.pop(name) for name in ("sharding", "vectorized", "vmap_method") if name in options}
    arrays, rest = partition((args, options), is_array)
    shapes, fixed = partition(result_shape_dtypes, lambda x: hasattr(x, "shape"))

    def call(arrays: Any) -> Any:
        called_with, named = combine(arrays, rest)
        return partition(callback(*called_with, **named), is_array)[0]

    return combine(jax.pure_callback(call, shapes, arrays, **own), fixed)
