"""Values that are spread over devices: what may move data from one device to another."""

from aerogel import _jax
from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes import Axis
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..program import Program, inner_jaxprs

# Each entry of their results needs one entry of each operand, which a partitioner puts on the same device.
_LOCAL = frozenset((*ELEMENTWISE, "broadcast_in_dim", "squeeze", "expand_dims", "transpose", "iota"))
_CALLS = ("jit", "custom_jvp_call", "custom_vjp_call")


def is_over_devices(program: Program) -> bool:
    """Whether values of a program that is traced now may be spread over several devices.

    The `jit` around it says so, or the type of any value, at any depth, which names a mesh of several devices or an
    explicit one. One is enough for all: where axes are automatic, XLA spreads the values around it too, back to the
    arguments, whose types say nothing of it.
    """
    if _jax.compiled_over_devices():
        return True
    seen: set[Jaxpr] = set()
    pending = [program.jaxpr]
    while pending:
        jaxpr = pending.pop()
        if jaxpr in seen:
            continue
        seen.add(jaxpr)
        if any(map(_is_placed, (*jaxpr.invars, *jaxpr.constvars))):
            return True
        for eqn in jaxpr.eqns:
            if any(map(_is_placed, eqn.outvars)):
                return True
            pending += inner_jaxprs(eqn)
    return False


def _is_placed(var: Var) -> bool:
    return _jax.on_many_devices(var.aval) or _jax.explicit_mesh(var.aval)


def is_entrywise(jaxpr: Jaxpr) -> bool:
    """Whether each entry of the results needs the same entries of the arguments only: nothing moves between devices."""
    return all(
        all(map(is_entrywise, inner_jaxprs(eqn))) if eqn.primitive.name in _CALLS else _is_entrywise(eqn)
        for eqn in jaxpr.eqns
    )


def _is_entrywise(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name == "bitcast_convert_type":  # else it splits entries, or joins them
        return eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape
    return eqn.primitive.name in _LOCAL or eqn.primitive.name in _jax.OURS


def stays_local(eqn: JaxprEqn, axis: Axis | None) -> bool:
    """Whether one step of an equation needs no collective, however the other dimensions are spread.

    Args:
        eqn: it maps over time.
        axis: where time is in its first operand; None if that has none.
    """
    name = eqn.primitive.name
    if name == "reshape":
        given, wanted = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        return [n for n in given if n != 1] == [n for n in wanted if n != 1]
    if name in ("slice", "pad"):  # of time alone
        shapes = zip(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, strict=True)
        shifts = (
            [any(p) for p in eqn.params["padding_config"]]
            if name == "pad"
            else [False] * len(eqn.outvars[0].aval.shape)
        )
        return axis is not None and not any(
            n != m or shift for d, ((n, m), shift) in enumerate(zip(shapes, shifts, strict=True)) if d != axis.dim
        )
    return name in _LOCAL
