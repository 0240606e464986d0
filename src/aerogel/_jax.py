"""Everything that Aerogel takes from the parts of JAX that are not public.

This is the only file that imports `jax.extend` or `jax._src`. Each name says what it is for; all were checked
on jax 0.10.2 and 0.12.0.1. When JAX changes, the change ends here; where the two differ, a comment says how.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import api, api_util, core, dtypes, literals, pjit, source_info_util, traceback_util, tree_util, util
from jax._src import config as jax_config
from jax._src import linear_util as lu
from jax._src.compute_on import extend_compute_type
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import lax as lax_internal
from jax._src.sharding_impls import UnspecifiedValue
from jax._src.state import discharge
from jax._src.state.types import AbstractRef, ReadEffect, WriteEffect
from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import JaxprEqn as JaxprEqn
from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive
from jax.extend.core import Var as Var
from jax.extend.core import check_jaxpr as check_jaxpr
from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun
from jax.extend.core import jaxprs_in_params as jaxprs_in_params

# The original functions, taken at import: `aerogel run` replaces `jax.jit`, and we would call ourselves.
original_jit = jax.jit
shaped_abstractify = core.shaped_abstractify
ShapedArray = core.ShapedArray
DropVar = core.DropVar
Tracer = core.Tracer
Atom = Var | Literal

# Unwrapping of errors: frames of ours are not the user's.
traceback_util.register_exclusion(__file__)
source_info_util.register_exclusion(__file__)


def exclude_from_tracebacks(path: str) -> None:
    """Frames of the file `path` disappear from JAX's filtered tracebacks and from source lines."""
    traceback_util.register_exclusion(path)
    source_info_util.register_exclusion(path)


exclude_from_tracebacks(os.path.join(os.path.dirname(__file__), "module") + os.sep)  # all that is in the folder


# A jit-cache-sensitive context: what is traced inside another optimised function must not be cached as if it had
# been traced alone. Public since jax 0.8.
inside_optimize = jax.make_user_context(False)
# The rule set of `ag.rules.use`; part of the key of every compiled function for the same reason.
rules_in_use = jax.make_user_context(None)


def is_traced(x: Any) -> bool:
    """Whether a leaf is an input of the program: under a trace, what is no tracer is static or a constant."""
    return isinstance(x, core.Tracer)


def trace_state_clean() -> bool:
    """Whether no transformation is active: then arrays are inputs too."""
    return core.trace_state_clean()


def differentiating() -> bool:
    """Whether the present trace is (somewhere above) a forward-mode or linearising one."""
    trace = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, (ad.JVPTrace, ad.LinearizeTrace)):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure as `jax.jit` sees them (its registry, not `tree_util`'s default one)."""
    return tree_util.tracing_registry.flatten(tree)


def register_node(
    cls: type, flatten: Any, unflatten: Any, flatten_with_keys: Any, dispatch_flatten: Any, dispatch_unflatten: Any
) -> None:
    """Makes `cls` a node of pytrees, and another one for the C++ code that answers calls of compiled functions.

    `jax.tree_util.register_pytree_with_keys` but for the last two: JAX gives that code a registry of its own so that
    it can take PRNG key arrays apart, which are leaves elsewhere. The leaves must be the same both ways.
    """
    for registry in (tree_util.default_registry, tree_util.none_leaf_registry, tree_util.tracing_registry):
        registry.register_node(cls, flatten, unflatten, flatten_with_keys)
    tree_util.dispatch_registry.register_node(cls, dispatch_flatten, dispatch_unflatten)
    tree_util._registry[cls] = tree_util._RegistryEntry(flatten, unflatten)


def dispatch_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and structure as the C++ code sees them that answers calls of compiled functions."""
    return tree_util.dispatch_registry.flatten(tree)


def input_aval(x: Any) -> Any:
    """The type of one input, with the state type that hijax values carry."""
    aval = core.shaped_abstractify(x)
    # Since jax 0.11 there is no such state any more.
    return core.AvalQDD(aval, core.cur_qdd(x)) if getattr(aval, "has_qdd", False) else aval


def argument_names(fun: Callable, args: Any, kwargs: Any, is_input: Sequence[bool]) -> Any:
    """Names of those arguments of `fun` that are inputs, for JAX's messages.

    The enclosing trace's purpose ("jit") is kept in them. The trace counts names against its inputs, which static
    arguments are not; a function that brings its own debug info may name another number of leaves: then names are
    unknown.
    """
    frame = getattr(core.trace_ctx.trace, "frame", None)
    purpose = frame.debug_info.traced_for if frame is not None and frame.debug_info is not None else "jit"
    debug_info = api_util.debug_info(purpose, fun, args, kwargs)
    names = debug_info.arg_names
    fits = names is not None and len(names) == len(is_input)
    kept = tuple(name for name, yes in zip(names, is_input, strict=True) if yes) if fits else None
    return debug_info._replace(arg_names=kept)


def with_weak_type(x: jax.Array) -> jax.Array:
    """The array as one whose dtype gives way to others, like that of `jnp.asarray(1.0)`: no public function does it."""
    return lax_internal._convert_element_type(x, x.dtype, weak_type=True)


def jit_disabled() -> bool:
    """Whether `jax.disable_jit` is on: functions run operation by operation, on values."""
    return jax_config.disable_jit.value


def checking_keys() -> bool:
    """Whether `debug_key_reuse` looks at a function: it is about the user's own program, every draw in it."""
    return jax_config.debug_key_reuse.value


def hunting_nans() -> bool:
    """Whether `debug_nans` or `debug_infs` runs a function operation by operation, to find the one at fault."""
    return (jax_config.debug_nans.value or jax_config.debug_infs.value) and core.trace_state_clean()


def trace_flat(flat_fun: Callable[..., Sequence[Any]], debug_info: Any, avals: Sequence[Any]) -> ClosedJaxpr:
    """The program of a function of flat arrays. Not cached: a cached one may hold dead tracers."""
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(flat_fun, debug_info=debug_info), list(avals))
    return ClosedJaxpr(jaxpr, consts)


def check_returned(debug_info: Any, out: Any, leaves: Sequence[Any]) -> Any:
    """JAX's own message for a result that is no array; returns the debug info with result names."""
    debug_info = debug_info.set_result_paths(out)
    pe._check_returned_jaxtypes(debug_info, leaves)
    return debug_info


def set_debug_info(program: ClosedJaxpr, debug_info: Any) -> None:
    """`lu.wrap_init` forgets result names; JAX's error on a bad result needs them."""
    program.jaxpr._debug_info = debug_info


def trace_small(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """The program of a small function of ours, at `avals`; it returns a flat sequence.

    Traced with 64-bit types allowed, so that a program from an x64 context keeps its types whatever the present
    context is: callers state every dtype.
    """
    debug_info = core.DebugInfo("aerogel", "aerogel", tuple(f"x{i}" for i in range(len(avals))), None)
    with jax_config.enable_x64(True):
        return trace_flat(fun, debug_info, avals)


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


def rename_effects(effects: Any, env: dict[Any, Any]) -> Any:
    """Effects on refs name variables; rename them with the variables."""
    if not effects:
        return effects
    return {
        e.replace(env.get(e.input, e.input)) if isinstance(e, core.effects.JaxprInputEffect) else e for e in effects
    }


def has_effects(eqn: JaxprEqn) -> bool:
    """JAX's own test for "must not be dropped" (reads of refs and axis names are droppable)."""
    return pe.has_effects(eqn)


def join_effects(eqns: Sequence[JaxprEqn]) -> Any:
    """The effects of a jaxpr from its equations' ones."""
    return core.join_effects(*(eqn.effects for eqn in eqns)) if any(eqn.effects for eqn in eqns) else core.no_effects


def new_var(aval: Any) -> Var:
    """A fresh variable."""
    return core.Var(aval)


def new_jaxpr(like: Jaxpr, invars: Any, outvars: Any, eqns: Any, constvars: Any = ()) -> Jaxpr:
    """A jaxpr with the argument and result names of `like` where their numbers still fit."""
    debug = like.debug_info
    if len(invars) + len(constvars) != len(like.invars) + len(like.constvars) or len(outvars) != len(like.outvars):
        debug = debug.with_unknown_names()
    is_high = any(map(_is_high, eqns))
    new = core.Jaxpr(constvars, invars, outvars, eqns, join_effects(eqns), debug, is_high)
    # Since jax 0.11 a jaxpr is closed, and constvars without values are its first arguments.
    return new.with_consts(like.consts) if constvars and ClosedJaxpr is Jaxpr else new


def _is_high(eqn: JaxprEqn) -> bool:
    return eqn.primitive.is_high(*(x.aval for x in eqn.invars), **eqn.params)


def holds_high_types(jaxpr: Jaxpr) -> bool:
    """Whether values of a program, or of one inside it, are of types that JAX has still to lower.

    An equation alone may be left to lower too: since jax 0.11 that is `jnp.searchsorted`, `nonzero`, `custom_root`.
    Such a one is like any that is unknown.
    """
    if not jaxpr.is_high:
        return False
    atoms = (*jaxpr.invars, *jaxpr.constvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars))
    inner = (jaxprs_in_params(eqn.params) for eqn in jaxpr.eqns)
    return any(x.aval.is_high for x in atoms) or any(holds_high_types(each) for found in inner for each in found)


INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def source_lines(eqn: JaxprEqn) -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made the equation; None if it was none of the user's.

    An installed package counts as the user's only if no caller stands outside of one.
    """
    frames = list(source_info_util.user_frames(eqn.source_info.traceback))
    own = (frame for frame in frames if not any(name in frame.file_name for name in INSTALLED))
    frame = next(own, frames[0] if frames else None)
    return None if frame is None else (frame.file_name, frame.start_line, frame.function_name)


def equation_context(eqn: JaxprEqn) -> contextlib.AbstractContextManager:
    """The context (compute_on, PRNG layout, mesh, metadata) that the equation was made in."""
    return eqn.ctx.manager


def explicit_mesh(aval: Any) -> bool:
    """Whether a value carries a sharding in its type, or is per-device inside a shard_map."""
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or mesh.empty:
        return False
    return not mesh.are_all_axes_auto


def same_type(a: Any, b: Any) -> bool:
    """Whether two types are one for JAX: dtype, shape, explicit sharding, memory space, and weakness.

    The mesh of automatic axes does not count: an argument's type names it, what is traced without arguments does not.
    """
    return core.typematch(a, b) and getattr(a, "weak_type", False) == getattr(b, "weak_type", False)


def same_effects(a: Jaxpr, b: Jaxpr) -> bool:
    """Whether two jaxprs have the same effects on the arguments in the same places."""
    return a.effects == b.effects == core.no_effects or core.positional_effects(a) == core.positional_effects(b)


def literal(value: Any, aval: Any) -> Literal:
    """A literal that keeps its type also where x64 is off: a NumPy scalar of 64 bits would count as one of 32 there."""
    return Literal(literals.TypedNdArray(np.asarray(value, aval.dtype), aval), aval)


def element_bytes(dtype: Any) -> int:
    """Bytes of one element; of an extended type (a typed key, ...) those of what stands for it."""
    if not isinstance(dtype, dtypes.ExtendedDType):
        return dtype.itemsize
    physical = core.physical_element_aval(dtype)
    return physical.size * physical.dtype.itemsize


def is_number(dtype: Any) -> bool:
    """Whether elements are numbers: no booleans, no keys or other extended types, no float0."""
    return dtypes.issubdtype(dtype, np.number)


def on_many_devices(aval: Any) -> bool:
    """Whether a value may be spread over devices: its type names a mesh of more than one."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh is not None and not mesh.empty and mesh.size > 1


def compiled_over_devices() -> bool:
    """Whether a `jit` that is tracing now was told, by `in_shardings` or `out_shardings`, to use several devices.

    The types of its program do not say so, and nothing else does while it is traced: its frame is asked.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is pjit._trace_for_jit.__code__:
            given = (*frame.f_locals["in_shardings_leaves"], *frame.f_locals["out_shardings_leaves"])
            if any(map(_is_spread, given)):
                return True
        frame = frame.f_back
    return False


def _is_spread(sharding: Any) -> bool:
    mesh = getattr(sharding, "mesh", None)  # which AUTO has too
    return (getattr(sharding, "num_devices", 1) if mesh is None else mesh.size) > 1


# The equations made inside are computed elsewhere, on "device_host" say: tests use it. `jax.experimental.compute_on`
# was this in jax 0.10.2; since 0.11 it wraps a function, and this is left inside.
computed_on = extend_compute_type
wraps = util.wraps
check_callable = api_util.check_callable
api_boundary = traceback_util.api_boundary
convert_element_type = lax_internal._convert_element_type
JaxprTypeError = core.JaxprTypeError


def is_unspecified(sharding: Any) -> bool:
    """Whether a `jit` argument's sharding was left open."""
    return sharding is None or isinstance(sharding, UnspecifiedValue)


def scan_counts(params: Any) -> tuple[int, int]:
    """How many of a `scan`'s arguments are constants and how many carries; its first results are as many carries.

    jax 0.10.2 has the two numbers as parameters; since 0.11 the groups of arguments and of results are trees.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def scan_params(params: Any, body: ClosedJaxpr, consts: int, carries: int) -> dict[str, Any]:
    """The parameters of a `scan` with another body: of constants, carries, inputs -> carries, outputs."""
    if "num_consts" in params:
        return {**params, "jaxpr": body, "num_consts": consts, "num_carry": carries}
    from jax._src import flattree  # not in jax 0.10.2

    inputs, outputs = len(body.in_avals) - consts - carries, len(body.out_avals) - carries
    ft_in, ft_out = (
        flattree.pack(tuple(map(flattree.nones, n))) for n in ((consts, carries, inputs), (carries, outputs))
    )
    return {**params, "jaxpr": body, "ft_in": ft_in, "ft_out": ft_out}


def is_kept_for_xla(eqn: JaxprEqn) -> bool:
    """Whether a `jit` asks that XLA sees its call: `inline=Inline.XLA_LATE`, say, which jax 0.10.2 does not have."""
    return getattr(eqn.params["inline"], "name", "").startswith("XLA_")


def under_scope(eqn: JaxprEqn, call: JaxprEqn, name: str) -> JaxprEqn:
    """An equation taken out of a call keeps the call's named scopes in front of its own."""
    outer, inner = call.source_info, eqn.source_info
    stack = outer.name_stack + source_info_util.new_name_stack(f"jit({name})") + inner.name_stack
    return eqn.replace(source_info=inner.replace(name_stack=stack))


def drop_dead(jaxpr: Jaxpr) -> Jaxpr:
    """JAX's own dead-code elimination; arguments stay."""
    return pe.dce_jaxpr(jaxpr, True, True)[0]


# The modules with the doors to `jit` besides `jax.jit`: what replaces `jit` for a whole process must set
# `jit_doors[0].jit` and `jit_doors[1].pjit` too.
jit_doors = (api, pjit)


def _named_primitives() -> dict[str, Primitive]:
    import jax.extend.core.primitives as extend_primitives
    from jax._src.random import prng

    found: dict[str, Primitive] = {}
    for module in (jax.lax, jax.lax.linalg, extend_primitives, prng, core, lax_internal):
        found |= {p.name: p for p in vars(module).values() if isinstance(p, core.Primitive)}
    return found


# JAX's primitives by their names in printed programs, for tables over primitives. `jax.lax` exports most of them,
# but not random_wrap, random_unwrap, optimization_barrier and the linear algebra ones.
primitives = _named_primitives()


@contextlib.contextmanager
def bound_like(eqn: JaxprEqn):
    """What is bound inside gets the equation's source line, name stack and context, as in `core.eval_jaxpr`."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack), eqn.ctx.manager:
        yield


def watch_slow_calls(observe: Callable[[Any, Any, Sequence[Any], Any, Any], None]) -> Callable[[], None]:
    """Calls `observe` before each call of a jitted function that JAX's C++ path does not answer.

    Those are the first one of every signature, and all that are made while tracing. It gets the function, `jit_p`'s
    parameters, the flat arguments (not donated yet), `args` and `kwargs`. Returns a function that ends the watch.
    """
    # Not `_run_python_pjit`: this frame would be on the stack while the program runs, and the text of an error from a
    # callback holds that stack.
    original = pjit._infer_params

    def watched(fun: Any, info: Any, args: Any, kwargs: Any) -> Any:
        found, args_flat = original(fun, info, args, kwargs)
        if sys._getframe(1).f_code.co_name == "cache_miss":  # a call, and not `lower`, `trace` or `eval_shape`
            observe(fun, found.params, args_flat, args, kwargs)
        return found, args_flat

    def stop() -> None:
        pjit._infer_params = original

    pjit._infer_params = watched
    return stop


def is_staging() -> bool:
    """Whether what is computed now becomes part of a program instead of running."""
    trace = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, pe.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


# What `jax.jit` and `pjit` are thin wrappers of. Called at the same depth, its warnings name the user's line.
make_jit = pjit.make_jit


def prng_name(aval: Any) -> str | None:
    """The name of the generator of typed PRNG keys ("threefry2x32"); None for other values."""
    dtype = getattr(aval, "dtype", None)
    return dtype._impl.name if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else None


def convert_constvars(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr that takes its constants as its first arguments, for params that hold open jaxprs (remat2)."""
    return pe.convert_constvars_jaxpr(jaxpr)


def forward_rule(eqn: JaxprEqn) -> tuple[ClosedJaxpr, list[int], list[bool]] | None:
    """The rule of a `custom_jvp_call` as a program of primals and of the tangents that are not zero by type.

    Returns the program, the positions of the inputs whose tangents it takes, and for each output whether its tangent
    is zero (and not among the results). None when the rule closes over values or distinguishes symbolic zeros.
    """
    if eqn.params["num_consts"] or eqn.params["symbolic_zeros"]:
        return None
    zeros = [x.aval.to_tangent_aval().dtype == jax.dtypes.float0 for x in eqn.invars]
    jaxpr, consts, still = eqn.params["jvp_jaxpr_fun"].call_wrapped(*zeros)
    return ClosedJaxpr(jaxpr, consts), [k for k, zero in enumerate(zeros) if not zero], list(still)


@dataclass(frozen=True)
class BackwardRule:
    """The rules of a `custom_vjp_call` as programs.

    Attributes:
        forward: primals -> `made` residuals, then the results.
        backward: all residuals, cotangents of the results -> cotangents of the inputs, those that are `zero` left out.
        made: how many residuals `forward` makes; the others are inputs.
        forwarded: for each residual, the input that it is, or None.
        zero: for each input, whether its cotangent is zero whatever happens.
    """

    forward: ClosedJaxpr
    backward: ClosedJaxpr
    made: int
    forwarded: list[int | None]
    zero: list[bool]


def backward_rule(eqn: JaxprEqn) -> BackwardRule | None:
    """The rules of a `custom_vjp_call`; None when they close over values or distinguish symbolic zeros."""
    p = eqn.params
    smooth = all(dtypes.issubdtype(v.aval.dtype, np.inexact) for v in eqn.outvars)
    if p["num_consts"] or p["symbolic_zeros"] or not smooth:
        return None
    forward, consts = p["fwd_jaxpr_thunk"].call_wrapped(*[True] * len(eqn.invars))
    _, residuals, forwarded = p["out_trees"]()
    made = residuals.num_leaves - sum(k is not None for k in forwarded)
    made_avals = iter([v.aval for v in forward.outvars[:made]])
    kept = [next(made_avals) if k is None else eqn.invars[k].aval for k in forwarded]
    zero: list[bool] = []
    logs: list[Any] = []

    def run(*args: Any) -> list[Any]:
        found = p["bwd"].call_wrapped(*args)
        if len(found) == 2 and isinstance(found[0], list):  # since jax 0.11 with what the rule logs, or None
            found, logs[:] = found[0], [found[1]]
        zero[:] = [isinstance(x, ad.Zero) for x in found]
        return [x for x in found if not isinstance(x, ad.Zero)]

    avals = [*kept, *(v.aval.to_ct_aval() for v in eqn.outvars)]
    names = tuple(f"x{i}" for i in range(len(avals)))
    info = core.DebugInfo("custom_vjp bwd", p["bwd"].debug_info.func_src_info, names, None)
    backward = trace_flat(run, info, avals)
    if consts or backward.consts or any(entry is not None for entry in logs):
        return None
    return BackwardRule(ClosedJaxpr(forward, consts), backward, made, list(forwarded), zero)


# What JAX's own caches of traces are keyed by: every setting and context that tracing looks at.
trace_key = jax_config.trace_context


# A place that a program reads and writes while it is traced: JAX's type of mutable arrays. `get` and `swap`, JAX's
# own operations on it, are not enough: under `vmap` they refuse values that are one for the whole batch, and under
# `checkpoint` they happen again in the backward pass.
def is_place(aval: Any) -> bool:
    """Whether a type is that of a place."""
    return isinstance(aval, AbstractRef)


@api_boundary  # below one of these JAX leaves its frames in tracebacks, and the refusal can be looked into
def trace_places(
    body: Callable[..., Any],
    user_function: Any,
    values: Sequence[Any],
    refuse: Callable[[Sequence[Jaxpr]], Exception],
) -> tuple[ClosedJaxpr, Any]:
    """The program of a function of places that hold `values`, and the structure of its result.

    JAX refuses branches with places under `vmap`: that becomes the error that `refuse` makes of the branches.
    """
    debug_info = api_util.debug_info("stateful", user_function, (), {}).with_unknown_names()
    out_tree: Any = None

    def flat(*places: Any) -> list[Any]:
        nonlocal out_tree
        out = body(*places)
        leaves, out_tree = flatten(out)
        check_returned(debug_info, out, leaves)
        return leaves

    types = [AbstractRef(core.shaped_abstractify(value)) for value in values]
    try:
        return trace_flat(flat, debug_info, types), out_tree
    except NotImplementedError as found:
        if "not supported in vmap-of-cond" not in str(found):
            raise
        last = found.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        # The rule that refused has the branches as a variable. JAX's message does not say which they are.
        raise refuse([] if last is None else jaxprs_in_params(dict(last.tb_frame.f_locals))) from found


def without_places(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program that takes the values of its places and returns, after its results, the values they have then."""
    return discharge.discharge_state(program)


def written_places(program: ClosedJaxpr) -> list[bool]:
    """For every argument, whether it is a place that the program writes."""
    written = {e.input for e in program.jaxpr.effects if isinstance(e, WriteEffect)}
    return [v in written for v in program.jaxpr.invars]


def place_primitives(refuse: Callable[[str, str], Exception]) -> tuple[Primitive, Primitive]:
    """Operations that read and write a place: `read.bind(place, name=...)`, `write.bind(place, value, name=...)`.

    They happen once, also under `checkpoint`, and are constants for differentiation. `refuse` makes the error for the
    place called `name` where what is written would not be one value there: it differs between the elements of a
    "vmap", or its "grad" would be lost.
    """
    read, write = core.Primitive("read_place"), core.Primitive("write_place")
    write.multiple_results = True
    for primitive in (read, write):
        primitive.is_effectful = lambda params: True  # type: ignore[attr-defined]
    read.def_effectful_abstract_eval(lambda place, *, name: (place.inner_aval, {ReadEffect(0)}))
    write.def_effectful_abstract_eval(lambda place, value, *, name: ([], {WriteEffect(0)}))
    # The values come last, after the types (jax 0.10.2) or a context that holds them (0.11).
    discharge.register_discharge_rule(read)(lambda *args, name: ((None,), args[-1]))
    discharge.register_discharge_rule(write)(lambda *args, name: ((args[-1], None), []))

    def read_jvp(primals: Any, _: Any, *, name: str) -> Any:
        value = read.bind(*primals, name=name)
        return value, ad.Zero(core.typeof(value).to_tangent_aval())

    def write_jvp(primals: Any, tangents: Any, *, name: str) -> Any:
        moves = tangents[1]
        if type(moves) is not ad.Zero and core.typeof(moves).dtype != dtypes.float0:
            raise refuse(name, "grad")
        write.bind(*primals, name=name)
        return [], []

    def write_batched(_: Any, values: Any, dims: Any, *, name: str) -> Any:
        if dims[1] is not None:
            raise refuse(name, "vmap")
        write.bind(*values, name=name)
        return [], []

    ad.primitive_jvps[read], ad.primitive_jvps[write] = read_jvp, write_jvp
    batching.fancy_primitive_batchers[write] = write_batched
    # In the forward pass only; the backward pass keeps what was read.
    pe.partial_eval_jaxpr_custom_rules[read] = lambda _, __, ___, eqn: (eqn, None, [False], [False], [])
    pe.partial_eval_jaxpr_custom_rules[write] = lambda _, __, ___, eqn: (eqn, None, [], [], [])
    return read, write


def marker_primitive(name: str) -> Primitive:
    """An operation that returns its argument, and does no more: `p.bind(x, **params)` says something about `x`.

    Derivatives pass it by; of a batch it is said in front of the batched dimension. XLA never sees it.
    """
    marker = core.Primitive(name)

    def batched(args: Any, dims: Any, **params: Any) -> Any:
        return marker.bind(batching.moveaxis(args[0], dims[0], 0), **params), 0

    marker.def_impl(lambda x, **params: x)
    marker.def_abstract_eval(lambda x, **params: x)
    ad.primitive_jvps[marker] = lambda primals, tangents, **params: (marker.bind(*primals, **params), tangents[0])
    batching.primitive_batchers[marker] = batched
    mlir.register_lowering(marker, lambda ctx, x, **params: [x])
    return marker


def can_be_traced(x: Any) -> bool:
    """Whether `jax.jit` takes a leaf as an array: numbers, arrays, shapes, refs, whatever was registered as such."""
    try:
        core.shaped_abstractify(x)
    except TypeError:
        return False
    except (ValueError, OverflowError):  # JAX knows it, and has something to say about it
        return True
    return not isinstance(x, type)  # `jnp.float32` has a dtype


def signature(f: Callable[..., Any]) -> Any:
    """The signature by which JAX resolves positions and names of arguments; None where there is none."""
    return api_util.fun_signature(f)


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of a compiled function's static arguments, as JAX resolved them."""
    return jitted._jit_info.static_argnums, jitted._jit_info.static_argnames


def donated_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the arguments that a compiled function donates, as JAX resolved them."""
    return jitted._jit_info.donate_argnums, jitted._jit_info.donate_argnames


def like(f: Any) -> Callable[[Any], Any]:
    """A decorator: the function gets the name, signature and docstring of `f`."""

    def decorate(g: Any) -> Any:
        named = util.wraps(f)(g)
        named.__doc__ = getattr(f, "__doc__", None)  # JAX's `wraps` makes "" of None
        return named

    return decorate
