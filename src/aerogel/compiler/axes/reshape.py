"""`reshape`: an axis moves between dimensions, alone or merged with its neighbours, as long as it stays in one piece.

In row-major order an axis of length T is a stride S and the factor T at it. It lands in the one dimension whose
strides enclose `S .. S * T`; if none does, the reshape cuts the axis in two.
"""

import math
from collections.abc import Mapping, Sequence

from ..._jax import JaxprEqn
from .answer import Axis, Mapped, No
from .entry import Entry
from .rebind import rebind, shape_of


def follow(axis: Axis, before: Sequence[int], after: Sequence[int], length: int) -> Axis | None:
    """Where the axis of a value of shape `before` stands after a reshape to `after`; None if it is cut in two."""
    if math.prod(before) == 0:
        return _follow_empty(axis, before, after)
    stride = axis.inner * math.prod(before[axis.dim + 1 :])
    found, step = None, 1
    for dim in range(len(after) - 1, -1, -1):
        inner, cut = divmod(stride, step)
        outer, rest = divmod(after[dim], inner * length) if inner else (0, 1)
        if not cut and not rest and outer:
            here = Axis(dim, outer, inner)
            # An axis of length 1 fits in several dimensions; one of its own is the simplest.
            if here.is_plain or length > 1:
                return here
            found = here
        step *= after[dim]
    return found


def _follow_empty(axis: Axis, before: Sequence[int], after: Sequence[int]) -> Axis | None:
    """Strides say nothing about empty values; follow dimensions that keep their neighbours on one side."""
    dim, shift = axis.dim, len(after) - len(before)
    if tuple(before[: dim + 1]) == tuple(after[: dim + 1]):
        return axis
    if dim + shift >= 0 and tuple(before[dim:]) == tuple(after[dim + shift :]):
        return Axis(dim + shift, axis.outer, axis.inner)
    return None


def _along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int) -> Mapped | No:
    order, read = _read_order(eqn)
    axis = ins[0]
    moved = Axis(order.index(axis.dim), axis.outer, axis.inner)
    return _answer(eqn, axis, follow(moved, read, eqn.params["new_sizes"], length))


def _along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    order, read = _read_order(eqn)
    moved = follow(outs[0], eqn.params["new_sizes"], read, length)
    return _answer(eqn, moved and Axis(order[moved.dim], moved.outer, moved.inner), outs[0])


def _read_order(eqn: JaxprEqn) -> tuple[Sequence[int], list[int]]:
    """The order in which `dimensions` (a transpose before the reshape) reads the input, and the shape it reads."""
    shape = shape_of(eqn.invars[0])
    order = eqn.params["dimensions"]
    order = range(len(shape)) if order is None else order
    return order, [shape[d] for d in order]


def _answer(eqn: JaxprEqn, before: Axis | None, after: Axis | None) -> Mapped | No:
    if before is None or after is None:
        return No("`reshape` cuts the axis in two")
    params, shape = eqn.params, eqn.params["new_sizes"]
    return Mapped((before,), (after,), rebind(eqn, lambda size: params | {"new_sizes": after.resize(shape, size)}))


ENTRIES = {"reshape": Entry(_along, _along_output)}
