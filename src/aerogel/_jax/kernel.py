"""A call that XLA's CPU backend compiles as one kernel, in the place of one for each of its operations."""

from functools import cache, partial
from typing import Any

import jax
from jax._src import core, dispatch
from jax._src.interpreters import ad, batching, mlir
from jax._src.lib import version as jaxlib_version
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from .partly import pulled, pushed

# The first is what XLA marks its own small loops with (`SmallWhileLoopHoistingPass`), the second keeps its inliner
# from the call. Looked at in jaxlib 0.10.2 and 0.12.0; of others it is not known what they make of it.
_MARKS = {"xla_cpu_small_call": "true", "inlineable": "false"}
KNOWS_KERNELS = (0, 10) <= jaxlib_version[:2] <= (0, 12)

_one_kernel = core.Primitive("one_kernel")
_one_kernel.multiple_results = True


def one_kernel(call: ClosedJaxpr, args: list[Var], outs: list[Var], like: JaxprEqn, steps_at_once: int = 1) -> JaxprEqn:
    """A call of `call`, which has no effects, that is one kernel on one CPU.

    There, so many steps of a `scan` in it are written out one after the other.

    On other devices, on several, and differentiated or batched, which would bring other operations into it, it is
    what it calls. It has to use each of its arguments for its results: with one that it does not use, XLA aborts the
    process.
    """
    _register_checks()
    return core.new_jaxpr_eqn(
        args,
        outs,
        _one_kernel,
        {"call": call, "steps_at_once": steps_at_once},
        core.no_effects,
        like.source_info,
        like.ctx,
    )


def _forward_mode(primals: Any, tangents: Any, *, call: ClosedJaxpr, **_: Any) -> Any:
    return pushed(core.jaxpr_as_fun(call), primals, tangents)


def _batched(args: Any, dims: Any, *, call: ClosedJaxpr, **_: Any) -> Any:
    outs = jax.vmap(core.jaxpr_as_fun(call), in_axes=tuple(dims))(*args)
    return outs, [0] * len(outs)


def _transposed(cotangents: Any, *args: Any, call: ClosedJaxpr, **_: Any) -> Any:
    return pulled(core.jaxpr_as_fun(call), cotangents, args)


def _called(ctx: Any, *args: Any, call: ClosedJaxpr, **_: Any) -> Any:
    return mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(ctx, *args)


def _marked(ctx: Any, *args: Any, call: ClosedJaxpr, steps_at_once: int) -> Any:
    where = ctx.module_context.axis_context
    if getattr(where, "num_devices", 1) != 1 or hasattr(where, "mesh"):
        return _called(ctx, *args, call=call)
    # XLA sets constants into what is called, whose argument is then used nowhere.
    held = hlo.OptimizationBarrierOp(args).results if args else ()
    outs = mlir.core_call_lowering(ctx, *held, name=_one_kernel.name, call_jaxpr=_unrolled(call, steps_at_once))
    made = next(x for x in jax.tree.leaves(outs) if isinstance(x, ir.Value))
    marks = {name: ir.StringAttr.get(value) for name, value in _MARKS.items()}
    made.owner.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(marks)
    return outs


def _unrolled(call: ClosedJaxpr, steps: int) -> ClosedJaxpr:
    if steps == 1:
        return call
    eqns = [
        eqn.replace(params={**eqn.params, "unroll": steps}) if eqn.primitive.name == "scan" else eqn
        for eqn in call.jaxpr.eqns
    ]
    return call.replace(jaxpr=call.jaxpr.replace(eqns=eqns))


@cache
def _register_checks() -> None:
    """Tells `checkify`, which is not imported before it is needed, to look into such calls."""
    from jax._src import checkify

    def checked(*args: Any, call: ClosedJaxpr, **_: Any) -> Any:
        k = next(k for k, x in enumerate(args) if isinstance(x, checkify.Error))  # jax 0.12 has a context before it
        return checkify.checkify_jaxpr(*args[:k], call, args[k + 1], args[k], *args[k + 2 :])

    checkify.error_checks[_one_kernel] = checked


_one_kernel.def_impl(partial(dispatch.apply_primitive, _one_kernel))
_one_kernel.def_abstract_eval(lambda *_, call, **__: [v.aval for v in call.jaxpr.outvars])
ad.primitive_jvps[_one_kernel] = _forward_mode
ad.primitive_transposes[_one_kernel] = _transposed
batching.primitive_batchers[_one_kernel] = _batched
mlir.register_lowering(_one_kernel, _called)
mlir.register_lowering(_one_kernel, _marked, platform="cpu")
