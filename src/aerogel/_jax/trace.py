"""From functions to programs, and from programs to results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax._src import config as jax_config
from jax._src import core, source_info_util
from jax._src import linear_util as lu
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import lax as lax_internal
from jax.extend.core import ClosedJaxpr, Jaxpr


def input_aval(x: Any) -> Any:
    """The type of one input, with the state type that hijax values carry."""
    aval = core.shaped_abstractify(x)
    # Since jax 0.11 there is no such state any more.
    return core.AvalQDD(aval, core.cur_qdd(x)) if getattr(aval, "has_qdd", False) else aval


def trace_flat(flat_fun: Callable[..., Sequence[Any]], debug_info: Any, avals: Sequence[Any]) -> ClosedJaxpr:
    """The program of a function of flat arrays. Not cached: a cached one may hold dead tracers."""
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(flat_fun, debug_info=debug_info), list(avals))
    return ClosedJaxpr(jaxpr, consts)


def trace_small(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """The program of a small function of ours, at `avals`; it returns a flat sequence.

    Traced with 64-bit types allowed, so that a program from an x64 context keeps its types whatever the present
    context is: callers state every dtype.
    """
    debug_info = core.DebugInfo("aerogel", "aerogel", tuple(f"x{i}" for i in range(len(avals))), None)
    with jax_config.enable_x64(True):
        return trace_flat(fun, debug_info, avals)


def check_returned(debug_info: Any, out: Any, leaves: Sequence[Any]) -> Any:
    """JAX's own message for a result that is no array; returns the debug info with result names."""
    debug_info = debug_info.set_result_paths(out)
    pe._check_returned_jaxtypes(debug_info, leaves)
    return debug_info


def set_debug_info(program: ClosedJaxpr, debug_info: Any) -> None:
    """`lu.wrap_init` forgets result names; JAX's error on a bad result needs them."""
    program.jaxpr._debug_info = debug_info


def evaluate(program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Results of `program` under whatever transformation is active.

    While staging, the equations are appended as they are (parameters, contexts and source lines kept; no abstract
    evaluation, no second tracing of nested functions); otherwise they are bound one by one.
    """
    trace = core.trace_ctx.trace
    if type(trace) is pe.DynamicJaxprTrace and not program.jaxpr.is_high:
        return _append(trace, program.jaxpr, program.consts, args)
    outs = core.eval_jaxpr(program.jaxpr, program.consts, *args)
    # A literal result is a bare Python or NumPy scalar here, and callers want an array.
    return [
        lax_internal._convert_element_type(x, v.aval.dtype, v.aval.weak_type) if isinstance(v, core.Literal) else x
        for x, v in zip(outs, program.jaxpr.outvars, strict=True)
    ]


def evaluate_around(
    program: ClosedJaxpr, args: Sequence[Any], instead: Mapping[str, Callable[..., Sequence[Any]]]
) -> list[Any]:
    """Results of a program, with `instead[name](equation, *inputs)` for the operations of these names."""
    env = dict(zip((*program.jaxpr.constvars, *program.jaxpr.invars), (*program.consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for eqn in program.jaxpr.eqns:
        ins = map(read, eqn.invars)
        name = eqn.primitive.name
        if name in instead:
            outs = instead[name](eqn, *ins)
        else:
            with eqn.ctx.manager:
                outs = eqn.primitive.bind(*ins, **eqn.primitive.get_bind_params(eqn.params))
            outs = outs if eqn.primitive.multiple_results else [outs]
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(x) for x in program.jaxpr.outvars]


def _append(trace: Any, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    here = source_info_util.current()
    env: dict[Any, Any] = {}
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        env[var] = trace.to_jaxpr_tracer(const, source_info=here)
    for var, arg in zip(jaxpr.invars, args, strict=True):
        env[var] = trace.to_jaxpr_tracer(arg, source_info=here)

    def read(atom: Any, src: Any) -> Any:
        if isinstance(atom, core.Literal):
            return pe.DynamicJaxprTracer(trace, atom.aval, atom, src)
        return env[atom]

    for eqn in jaxpr.eqns:
        src = eqn.source_info.replace(name_stack=here.name_stack + eqn.source_info.name_stack)
        ins = [read(x, src) for x in eqn.invars]
        avals = [v.aval for v in eqn.outvars]
        folded = pe.try_constant_folding(eqn.primitive, ins, eqn.params, avals)
        if folded is not None:
            outs = [trace.new_const(c, source_info=src, aval=a) for c, a in zip(folded, avals, strict=True)]
        else:
            effects = eqn.effects
            if effects:
                effects = {
                    e.replace(env[e.input].val) if isinstance(e, core.effects.JaxprInputEffect) else e for e in effects
                }
            outs = trace.emit_eqn(ins, avals, eqn.primitive, eqn.params, effects, src, eqn.ctx)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(x, here) for x in jaxpr.outvars]
