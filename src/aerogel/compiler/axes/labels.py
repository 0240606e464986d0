"""The common shape of most table entries: every dimension of every input and output gets a label, as in `einsum`.

A label says "the equation works on each entry of this dimension apart from the others":

* in inputs and outputs: the dimension is carried through (elementwise, batch and free dimensions);
* in inputs only: it is reduced over;
* in outputs only: the values are the same all along it (broadcasts);
* None instead of a label: entries of this dimension are mixed (sorted, padded, transformed), or it is a unit
  dimension that is broadcast.

One label names dimensions of one size. Merged axes (`outer * T * inner`) need no further care: what works on each
entry of a dimension works on each part of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..._jax import JaxprEqn
from .answer import Axis, Mapped, No, Reduced
from .entry import Answer, Entry
from .rebind import rebind

Dims = tuple[int | None, ...]
Axes = tuple[Axis | None, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """A label or None for each dimension of each input (`ins`) and output (`outs`)."""

    ins: tuple[Dims, ...]
    outs: tuple[Dims, ...]


LabelsOf = Callable[[JaxprEqn], Labels]
ParamsOf = Callable[[JaxprEqn, Axes, Axes, int], dict[str, Any]]
ReducedOf = Callable[[JaxprEqn, Axes], Reduced | No]


def labelled(labels: LabelsOf, params: ParamsOf | None = None, reduced: ReducedOf | None = None) -> Entry:
    """The entry of a primitive that labels describe.

    Args:
        labels: the labels of an equation.
        params: `params(eqn, ins, outs, size)` gives the params of the primitive on a block of `size` indices, for
            primitives whose params hold sizes.
        reduced: `reduced(eqn, ins)` answers for a label that stands in inputs only; without it that is a `No`.
    """

    def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int) -> Answer:
        found = labels(eqn)
        chosen = _common_label(eqn, found.ins, ins, "input")
        if isinstance(chosen, No):
            return chosen
        all_ins, all_outs = _places(found.ins, *chosen), _places(found.outs, *chosen)
        if None not in all_outs:
            return _mapped(eqn, all_ins, all_outs, params)
        if all(out is None for out in all_outs) and reduced is not None:
            return reduced(eqn, all_ins)
        return No(f"`{eqn.primitive.name}` does not keep the axis in its outputs")

    def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
        found = labels(eqn)
        chosen = _common_label(eqn, found.outs, outs, "output")
        if isinstance(chosen, No):
            return chosen
        all_outs = _places(found.outs, *chosen)
        if None in all_outs:
            return No(f"only some outputs of `{eqn.primitive.name}` have the axis")
        return _mapped(eqn, _places(found.ins, *chosen), all_outs, params)

    return Entry(along, along_output)


def _mapped(eqn: JaxprEqn, ins: Axes, outs: Axes, params: ParamsOf | None) -> Mapped:
    return Mapped(ins, outs, rebind(eqn, None if params is None else partial(params, eqn, ins, outs)))


def _common_label(
    eqn: JaxprEqn, dims: Sequence[Dims], axes: Mapping[int, Axis], kind: str
) -> tuple[int, int, int] | No:
    """The one label (with outer and inner) that all the given axes stand at."""
    chosen: tuple[int, int, int] | None = None
    for position, axis in axes.items():
        label = dims[position][axis.dim]
        if label is None:
            name = eqn.primitive.name
            return No(f"`{name}` does not work on dimension {axis.dim} of {kind} {position} entry by entry")
        if chosen is not None and chosen != (label, axis.outer, axis.inner):
            return No(f"the axis stands in two different places of `{eqn.primitive.name}`")
        chosen = (label, axis.outer, axis.inner)
    assert chosen is not None, "the front door answers questions without an axis"
    return chosen


def _places(dims: Sequence[Dims], label: int, outer: int, inner: int) -> Axes:
    return tuple(Axis(each.index(label), outer, inner) if label in each else None for each in dims)
