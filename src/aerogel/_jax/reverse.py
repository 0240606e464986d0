"""Programs that reverse mode takes through another function: the same results, another way back."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax._src import core
from jax._src import linear_util as lu
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import loops
from jax._src.lax.eval_jaxpr import eval_jaxpr_p
from jax.extend.core import ClosedJaxpr

from .partly import of_some, pushed
from .trace import trace_flat

# What `eval_jaxpr` calls its program: "jaxpr" in jax 0.10, "call_jaxpr" in 0.12.
_BODY = next(
    name for name in inspect.signature(ad.primitive_linearizations[eval_jaxpr_p]).parameters if "jaxpr" in name
)

Flat = Callable[..., Sequence[Any]]
Anew = Callable[[ClosedJaxpr], Flat]


@dataclass(frozen=True, eq=False)
class _How:
    """How reverse mode goes through one equation: parts of `with_reverse`, and what transformations made of them.

    Attributes:
        reverse: a function with the results of the program.
        linear: for a program with tangents, another such function, linear in these: what is transposed in the end.
        primals: how many arguments of `linear` are no tangents.
        anew: as in `with_reverse`.
        better: as in `with_reverse`.
    """

    reverse: Flat
    linear: Flat | None
    primals: int
    anew: Anew | None
    better: Callable[[ClosedJaxpr], ClosedJaxpr] | None

    def __repr__(self) -> str:
        return "another way back"  # as it stands in the text of a program


# What JAX's own `scan` stacks results of one type in, `(length,), (None,), aval`: it has their sharding and varying
# axes, and it is not written before the loop.
stack_of = loops._empty_array


def traced(f: Flat, avals: Sequence[Any]) -> ClosedJaxpr:
    """The program of a function of ours on flat arrays, which is no user's to be named in a message."""
    return trace_flat(f, core.DebugInfo("aerogel", "aerogel", tuple(f"x{i}" for i in range(len(avals))), None), avals)


def is_repeatable(effect: Any) -> bool:
    """Whether what has this effect may be computed again: it uses the name of a mapped axis, and that is all."""
    return isinstance(effect, core.NamedAxisEffect)


def row_of(aval: Any) -> Any:
    """The type of one entry along the first dimension, as `scan` hands it to its body."""
    return core.mapped_leading_aval(aval.shape[0], aval)


with_reverse_p = core.Primitive("with_reverse")
with_reverse_p.multiple_results = True


def with_reverse(
    run: Flat,
    reverse: Flat,
    *args: Any,
    anew: Anew | None = None,
    better: Callable[[ClosedJaxpr], ClosedJaxpr] | None = None,
) -> list[Any]:
    """`run(*args)`. Reverse mode differentiates `reverse(*args)` in its place, which has the same results.

    Both are functions of flat arrays that close over no tracer. Evaluation, forward mode and `jax.linearize` take
    `run`; a batch is made of both. `reverse` is called when a gradient is taken, and not before.

    Args:
        run: a function.
        reverse: another, with the same results.
        *args: what they take.
        anew: makes a `reverse` of the program of `run` with tangents, or of a batch of it. Without it that is `reverse`
            with tangents, which reverse mode must be able to go through: a `jax.custom_vjp` with tangents is not.
        better: makes of the program of `run`, or of what transformations made of it, what is evaluated in its place.
    """
    program = traced(run, [core.typeof(x) for x in args])
    return with_reverse_p.bind(*args, jaxpr=program, how=_How(reverse, None, 0, anew, better))


def _run(*args: Any, jaxpr: ClosedJaxpr, how: _How) -> list[Any]:
    return core.jaxpr_as_fun(jaxpr if how.better is None else how.better(jaxpr))(*args)


def _types(*_: Any, jaxpr: ClosedJaxpr, how: _How) -> tuple[list[Any], Any]:
    del how
    return jaxpr.out_avals, core.positional_effects(jaxpr.jaxpr)


def _forward_mode(primals: Any, tangents: Any, *, jaxpr: ClosedJaxpr, how: _How) -> tuple[list[Any], list[Any]]:
    nonzero = [type(t) is not ad.Zero for t in tangents]
    both, nonzero_out = ad.jvp_jaxpr(jaxpr, nonzero, False)
    count, moved = len(primals), [k for k, yes in enumerate(nonzero) if yes]

    def with_tangents(*args: Any) -> list[Any]:
        primals, given = args[:count], list(args[count:])
        outs, found = jax.jvp(of_some(how.reverse, primals, moved), [primals[k] for k in moved], given)
        return [*outs, *(t for t, yes in zip(found, nonzero_out, strict=True) if yes)]

    given = [tangents[k] for k in moved]
    reverse = with_tangents if how.anew is None else how.anew(both)
    outs = with_reverse_p.bind(
        *primals, *given, jaxpr=both, how=replace(how, reverse=reverse, linear=with_tangents, primals=count)
    )
    found = iter(outs[len(nonzero_out) :])
    avals = [v.to_tangent_aval() for v in jaxpr.out_avals]
    return outs[: len(nonzero_out)], [
        next(found) if yes else ad.Zero(aval) for aval, yes in zip(avals, nonzero_out, strict=True)
    ]


def _linearized(is_vjp: bool, nonzero: Any, *primals: Any, jaxpr: ClosedJaxpr, how: _How) -> Any:
    if not is_vjp:  # what `jax.linearize` returns is evaluated
        return ad.primitive_linearizations[eval_jaxpr_p](is_vjp, nonzero, *primals, **{_BODY: jaxpr})

    def with_tangents(values: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        outs, found = pushed(how.reverse, values, tangents)
        return list(outs), [ad.Zero(core.typeof(t)) if t.dtype == jax.dtypes.float0 else t for t in found]

    info = jaxpr.jaxpr.debug_info.with_unknown_names()
    linear = lu.wrap_init(with_tangents, debug_info=info)
    return ad.linearize_from_jvp(linear, True, nonzero, False, False, primals, {})


def _batched(axis: Any, args: Any, dims: Any, *, jaxpr: ClosedJaxpr, how: _How) -> tuple[list[Any], list[Any]]:
    moved = [x if d is None else batching.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    many, is_batched = batching.batch_jaxpr(jaxpr, axis, [d is not None for d in dims], False)

    def of_batch(*values: Any) -> list[Any]:
        # All inputs are mapped: JAX adds up cotangents too often where a `custom_vjp` is mapped over some of its inputs
        # and has results that are not mapped (jax 0.10.2).
        full = [
            batching.bdim_at_front(x, None if d is None else 0, axis.size, axis.explicit_mesh_axis)
            for x, d in zip(values, dims, strict=True)
        ]
        mapped = jax.vmap(how.reverse, axis_size=axis.size, axis_name=axis.name, spmd_axis_name=axis.spmd_name)
        return [x if yes else x[0] for x, yes in zip(mapped(*full), is_batched, strict=True)]

    reverse = of_batch if how.anew is None else how.anew(many)
    outs = with_reverse_p.bind(*moved, jaxpr=many, how=replace(how, reverse=reverse, linear=None, primals=0))
    return outs, [0 if yes else None for yes in is_batched]


def _is_transposed_next(how: _How, unknown: Sequence[bool]) -> bool:
    """Whether an equation is divided because a gradient is taken: what is not known are tangents."""
    return how.linear is not None and any(unknown) and not any(unknown[: how.primals])


def _divided(trace: Any, *tracers: Any, jaxpr: ClosedJaxpr, how: _How) -> Any:
    if not _is_transposed_next(how, [not t.is_known() for t in tracers]):
        return trace.default_process_primitive(with_reverse_p, tracers, {"jaxpr": jaxpr, "how": how})
    with core.set_current_trace(trace):
        return how.linear(*tracers)


def _divided_in_checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    how = eqn.params["how"]
    if _is_transposed_next(how, unknown):
        opened = traced(how.linear, [x.aval for x in eqn.invars])
        call = eqn.replace(primitive=core.closed_call_p, params={"call_jaxpr": opened})
        return pe.partial_eval_jaxpr_custom_rules[core.closed_call_p](saveable, unknown, instantiated, call)
    read = [x for x, yes in zip(eqn.invars, instantiated, strict=True) if type(x) is core.Var and not yes]
    if any(unknown):
        return None, eqn, [True] * len(eqn.outvars), [True] * len(eqn.outvars), read
    return eqn, eqn, [False] * len(eqn.outvars), [True] * len(eqn.outvars), read


def _transposed(cotangents: Any, *args: Any, jaxpr: ClosedJaxpr, how: _How) -> Any:
    del how
    return ad.fancy_transposes[eval_jaxpr_p](cotangents, *args, **{_BODY: jaxpr})


with_reverse_p.def_impl(_run)
with_reverse_p.def_effectful_abstract_eval(_types)
ad.primitive_jvps[with_reverse_p] = _forward_mode
ad.primitive_linearizations[with_reverse_p] = _linearized
ad.fancy_transposes[with_reverse_p] = _transposed
batching.fancy_primitive_batchers[with_reverse_p] = _batched
pe.custom_partial_eval_rules[with_reverse_p] = _divided
pe.partial_eval_jaxpr_custom_rules[with_reverse_p] = _divided_in_checkpoint
mlir.register_lowering(with_reverse_p, mlir.lower_fun(_run, multiple_results=True))
