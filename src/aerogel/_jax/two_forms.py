"""Calls with two forms: one for CUDA devices, and the one that transformations see.

A library's kernel has a gradient at most: nobody can push tangents through it, or differentiate it twice. So what is
transformed is the plain form, and the other is taken where a call is compiled. A gradient has two forms of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core
from jax._src.interpreters import ad, batching, mlir
from jax.extend.core import ClosedJaxpr

from .partly import of_some, pulled, pushed
from .program import drop_dead, new_jaxpr
from .reverse import traced, with_reverse
from .trace import evaluate_around

NAME = "two_forms"
VIEWS = frozenset("transpose reshape broadcast_in_dim squeeze expand_dims".split())

two_forms_p = core.Primitive(NAME)
two_forms_p.multiple_results = True


def two_forms(plain: ClosedJaxpr, fused: ClosedJaxpr, *args: Any) -> list[Any]:
    """The results of `plain`, computed by `fused` on CUDA devices, and so is their gradient.

    `plain` is what other derivatives are made of, a second one too; a batch is made of both. Neither has effects.
    """
    run = partial(_bound, plain, fused)
    return with_reverse(run, _differentiable(plain, fused), *args, anew=_anew)


def _bound(plain: ClosedJaxpr, fused: ClosedJaxpr, *args: Any) -> list[Any]:
    return two_forms_p.bind(*args, plain=plain, fused=fused)


def _anew(program: ClosedJaxpr) -> Callable[..., list[Any]]:
    """A batch, for reverse mode; or a program with tangents, in which there are no two forms."""
    instead = {NAME: lambda eqn, *args: _differentiable(eqn.params["plain"], eqn.params["fused"])(*args)}
    return lambda *args: evaluate_around(program, args, instead)


@dataclass(frozen=True)
class GradientForms:
    """Two forms of the results and what is kept for the gradient, and two of the gradient."""

    _forward: tuple[ClosedJaxpr, ClosedJaxpr]
    _backward: tuple[ClosedJaxpr, ClosedJaxpr]

    def forward(self, *args: Any) -> list[Any]:
        """The results, and what `backward` takes of the kernel."""
        return _bound(*self._forward, *args)

    def backward(self, *given: Any) -> list[Any]:
        """The cotangents of what moves, of the arguments, what `forward` has kept and the results' cotangents."""
        return _bound(*self._backward, *given)


def _differentiable(plain: ClosedJaxpr, fused: ClosedJaxpr) -> Callable[..., list[Any]]:
    """The function that reverse mode goes through."""
    smooth = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in plain.in_avals]
    count = len(plain.out_avals)
    gradient = cache(lambda: gradient_forms(plain, fused, [k for k, yes in enumerate(smooth) if yes]))
    call = jax.custom_vjp(partial(_bound, plain, fused))

    def forward(*args: Any) -> Any:
        outs = gradient().forward(*args)
        return outs[:count], (args, outs[count:])

    def backward(kept: Any, cotangents: Any) -> tuple[Any, ...]:
        args, made = kept
        found = iter(gradient().backward(*args, *made, *cotangents))
        return tuple(next(found) if yes else None for yes in smooth)

    call.defvjp(forward, backward)
    return call


def gradient_forms(plain: ClosedJaxpr, fused: ClosedJaxpr, moved: Sequence[int]) -> GradientForms:
    """The gradient of two forms by the arguments that are `moved`."""
    avals, count = plain.in_avals, len(plain.out_avals)
    tree: Any = None

    def vjp_of(form: ClosedJaxpr, args: Sequence[Any]) -> Any:
        return jax.vjp(of_some(core.jaxpr_as_fun(form), args, moved), *(args[k] for k in moved))

    def whole(*args: Any) -> list[Any]:
        nonlocal tree
        outs, back = vjp_of(fused, args)
        leaves, tree = jax.tree.flatten(back)
        return [*outs, *leaves]

    program = traced(whole, avals)
    outs, leaves = program.jaxpr.outvars[:count], program.jaxpr.outvars[count:]
    views = _views_of_arguments(program)
    kept = list(dict.fromkeys(v for v in leaves if isinstance(v, core.Var) and v not in views))
    again = _with_results(program, [v for v in leaves if v not in kept])

    def plain_forward(*args: Any) -> list[Any]:
        # The plain gradient reads nothing of what the kernel keeps.
        nothing = [jnp.full(v.aval.shape, jnp.nan, v.aval.dtype) for v in kept]
        return [*core.jaxpr_as_fun(plain)(*args), *nothing]

    def plain_backward(*given: Any) -> list[Any]:
        return list(vjp_of(plain, given[: len(avals)])[1](list(given[len(avals) + len(kept) :])))

    def fused_backward(*given: Any) -> list[Any]:
        args, made = given[: len(avals)], given[len(avals) : len(avals) + len(kept)]
        known, views = dict(zip(kept, made, strict=True)), iter(core.jaxpr_as_fun(again)(*args))
        full = [known[v] if v in kept else next(views) for v in leaves]
        return list(jax.tree.unflatten(tree, full)(list(given[len(avals) + len(kept) :])))

    both = [*avals, *(v.aval for v in kept), *(aval.to_ct_aval() for aval in plain.out_avals)]
    return GradientForms(
        (traced(plain_forward, avals), _with_results(program, [*outs, *kept])),
        (traced(plain_backward, both), traced(fused_backward, both)),
    )


def _views_of_arguments(program: ClosedJaxpr) -> set[Any]:
    """What is made again instead of kept: views of arguments and constants."""
    views: set[Any] = {*program.jaxpr.invars, *program.jaxpr.constvars}
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name in VIEWS and all(isinstance(x, core.Literal) or x in views for x in eqn.invars):
            views.update(eqn.outvars)
    return views


def _with_results(program: ClosedJaxpr, outs: Sequence[Any]) -> ClosedJaxpr:
    jaxpr = program.jaxpr
    return ClosedJaxpr(drop_dead(new_jaxpr(jaxpr, jaxpr.invars, outs, jaxpr.eqns, jaxpr.constvars)), program.consts)


def _computed(*args: Any, plain: ClosedJaxpr, fused: ClosedJaxpr) -> list[Any]:
    """Operation by operation: each is compiled once, and a call anew for each trace."""
    places = {device.platform for x in args if isinstance(x, jax.Array) for device in x.devices()}
    return core.jaxpr_as_fun(fused if places == {"gpu"} else plain)(*args)


def _forward_mode(primals: Any, tangents: Any, *, plain: ClosedJaxpr, **_: Any) -> Any:
    return pushed(core.jaxpr_as_fun(plain), primals, tangents)


def _transposed(cotangents: Any, *args: Any, plain: ClosedJaxpr, **_: Any) -> Any:
    return pulled(core.jaxpr_as_fun(plain), cotangents, args)


def _batched(axis: Any, args: Any, dims: Any, *, plain: ClosedJaxpr, fused: ClosedJaxpr) -> Any:
    # All are mapped: cuDNN's rule takes no others (jax 0.10.2).
    full = [batching.bdim_at_front(x, d, axis.size, axis.explicit_mesh_axis) for x, d in zip(args, dims, strict=True)]
    how = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
    many = [traced(jax.vmap(core.jaxpr_as_fun(form), **how), [core.typeof(x) for x in full]) for form in (plain, fused)]
    return _bound(*many, *full), [0] * len(plain.out_avals)


def _plain(*args: Any, plain: ClosedJaxpr, **_: Any) -> list[Any]:
    return core.jaxpr_as_fun(plain)(*args)


def _fused(*args: Any, fused: ClosedJaxpr, **_: Any) -> list[Any]:
    return core.jaxpr_as_fun(fused)(*args)


two_forms_p.def_impl(_computed)
two_forms_p.def_abstract_eval(lambda *_, plain, **__: plain.out_avals)
ad.primitive_jvps[two_forms_p] = _forward_mode
ad.primitive_transposes[two_forms_p] = _transposed
batching.fancy_primitive_batchers[two_forms_p] = _batched
mlir.register_lowering(two_forms_p, mlir.lower_fun(_plain, multiple_results=True))
mlir.register_lowering(two_forms_p, mlir.lower_fun(_fused, multiple_results=True), platform="cuda")
