"""Elementwise operations of our own: computed in another way than one of JAX's, with its types and derivatives."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jax._src import core, dispatch
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe

from .partly import pushed

OURS: dict[str, Callable[..., Any]] = {}  # those that were made: by name, what they compute with


def elementwise_primitive(
    name: str, natural: Callable[..., Any], run: Callable[..., Any], operands: int
) -> Callable[..., Any]:
    """A function that is one operation, and computes with `run` what `natural` computes.

    In the place of a `jax.custom_jvp`, whose rule JAX 0.10.2 drops in a loop that is differentiated twice. Its
    derivative is that of `natural`.
    """
    primitive = core.Primitive(name)
    OURS[name] = run
    names = tuple(f"x{i}" for i in range(operands))
    info = core.DebugInfo("aerogel", name, names, None)

    def as_list(*xs: Any) -> list[Any]:
        return [natural(*xs)]

    def forward_mode(primals: Any, tangents: Any) -> Any:
        return primitive.bind(*primals), pushed(natural, primals, tangents)[1]

    primitive.def_impl(partial(dispatch.apply_primitive, primitive))
    primitive.def_abstract_eval(lambda *avals: pe.abstract_eval_fun(as_list, *avals, debug_info=info)[0])
    ad.primitive_jvps[primitive] = forward_mode
    (batching.defvectorized if operands == 1 else batching.defbroadcasting)(primitive)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
    return lambda *xs: primitive.bind(*xs)
