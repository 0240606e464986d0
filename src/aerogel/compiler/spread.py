"""Values that are spread over devices: what may move data from one device to another."""

from aerogel import _jax
from aerogel._jax import JaxprEqn

from .axes import Axis
from .axes.elementwise import NAMES as ELEMENTWISE

# Each entry of their results needs one entry of each operand, which a partitioner puts on the same device.
_LOCAL = frozenset((*ELEMENTWISE, "broadcast_in_dim", "squeeze", "expand_dims", "transpose", "iota"))


def is_spread(eqn: JaxprEqn, over_devices: bool) -> bool:
    """Whether an equation may read values of several devices: a type says so, or `over_devices`, that any may be."""
    return over_devices or any(_jax.on_many_devices(x.aval) for x in eqn.invars)


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
