"""Places: JAX's mutable arrays as what a program reads and writes while it is traced."""

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import api_util, core, dtypes
from jax._src.interpreters import ad, batching
from jax._src.interpreters import partial_eval as pe
from jax._src.state import discharge
from jax._src.state.types import AbstractRef, ReadEffect, WriteEffect
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, jaxprs_in_params

from .source import api_boundary
from .trace import check_returned, trace_flat
from .tree import flatten


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


_whole = core.Primitive("whole")
_whole.multiple_results = True
_whole.def_effectful_abstract_eval(lambda *_, equation: ([v.aval for v in equation.outvars], equation.effects))
_LOWERED = {"custom_jvp_call", "custom_vjp_call", "call_hi_primitive"}


# JAX lowers a program while it takes places out, and a lowered program has no derivative rules of its own any more.
def kept_whole(equation: JaxprEqn) -> JaxprEqn:
    """In the place of an equation that `without_places` would lower: one that it cannot look into."""
    on_inputs = any(isinstance(e, core.effects.JaxprInputEffect) for e in equation.effects)
    if equation.primitive.name not in _LOWERED or on_inputs:
        return equation
    return equation.replace(primitive=_whole, params={"equation": equation})


def as_it_was(equation: JaxprEqn) -> JaxprEqn:
    """The equation that `kept_whole` put away, of the inputs and results that its place has now."""
    if equation.primitive is not _whole:
        return equation
    return equation.params["equation"].replace(invars=equation.invars, outvars=equation.outvars)


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
