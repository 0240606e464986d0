"""Primitives that move, add, cut and join dimensions: an axis passes through the dimensions that they leave alone."""

from typing import Any

from ..._jax import JaxprEqn
from .entry import Entry
from .labels import Axes, Dims, Labels, labelled
from .rebind import shape_of
from .rows import with_rows


def _broadcast_in_dim(eqn: JaxprEqn) -> Labels:
    operand, shape = shape_of(eqn.invars[0]), eqn.params["shape"]
    to = eqn.params["broadcast_dimensions"]
    kept = tuple(d if operand[i] == shape[d] else None for i, d in enumerate(to))
    return Labels((kept,), (tuple(range(len(shape))),))


def _broadcast_params(eqn: JaxprEqn, ins: Axes, outs: Axes, size: int) -> dict[str, Any]:
    (out,) = outs
    assert out is not None, "a broadcast keeps every axis"
    return eqn.params | {"shape": out.resize(eqn.params["shape"], size)}


def _transpose(eqn: JaxprEqn) -> Labels:
    permutation = tuple(eqn.params["permutation"])
    return Labels((tuple(range(len(permutation))),), (permutation,))


def _squeeze(eqn: JaxprEqn) -> Labels:
    rank, gone = len(shape_of(eqn.invars[0])), {d for d in eqn.params["dimensions"]}
    kept = tuple(d for d in range(rank) if d not in gone)
    return Labels((tuple(None if d in gone else d for d in range(rank)),), (kept,))


def _rev(eqn: JaxprEqn) -> Labels:
    return _same(eqn, [d not in eqn.params["dimensions"] for d in range(len(shape_of(eqn.invars[0])))])


def _slice(eqn: JaxprEqn) -> Labels:
    shape, params = shape_of(eqn.invars[0]), eqn.params
    strides = params["strides"] or (1,) * len(shape)
    whole = zip(params["start_indices"], params["limit_indices"], strides, shape, strict=True)
    return _same(eqn, [(start, limit, stride) == (0, size, 1) for start, limit, stride, size in whole])


def _slice_params(eqn: JaxprEqn, ins: Axes, outs: Axes, size: int) -> dict[str, Any]:
    (axis,) = ins
    assert axis is not None
    return eqn.params | {"limit_indices": axis.resize(eqn.params["limit_indices"], size)}


def _dynamic_slice(eqn: JaxprEqn) -> Labels:
    # A full dimension has only one place to start at, whatever the index says: it is clamped to 0.
    return _same(eqn, [a == b for a, b in zip(shape_of(eqn.invars[0]), eqn.params["slice_sizes"], strict=True)])


def _dynamic_slice_params(eqn: JaxprEqn, ins: Axes, outs: Axes, size: int) -> dict[str, Any]:
    (axis, *_starts) = ins
    assert axis is not None
    return eqn.params | {"slice_sizes": axis.resize(eqn.params["slice_sizes"], size)}


def _dynamic_update_slice(eqn: JaxprEqn) -> Labels:
    operand, update = shape_of(eqn.invars[0]), shape_of(eqn.invars[1])
    dims = tuple(d if a == b else None for d, (a, b) in enumerate(zip(operand, update, strict=True)))
    return Labels((dims, dims, *((),) * (len(eqn.invars) - 2)), (dims,))


def _pad(eqn: JaxprEqn) -> Labels:
    return _same(eqn, [tuple(edges) == (0, 0, 0) for edges in eqn.params["padding_config"]])


def _concatenate(eqn: JaxprEqn) -> Labels:
    dims = _except(len(shape_of(eqn.outvars[0])), eqn.params["dimension"])
    return Labels((dims,) * len(eqn.invars), (dims,))


def _stack(eqn: JaxprEqn) -> Labels:
    new, rank = eqn.params["axis"], len(shape_of(eqn.outvars[0]))
    kept = tuple(d for d in range(rank) if d != new)
    return Labels((kept,) * len(eqn.invars), (_except(rank, new),))


def _unstack(eqn: JaxprEqn) -> Labels:
    gone, rank = eqn.params["axis"], len(shape_of(eqn.invars[0]))
    kept = tuple(d for d in range(rank) if d != gone)
    return Labels((_except(rank, gone),), (kept,) * len(eqn.outvars))


def _split(eqn: JaxprEqn) -> Labels:
    dims = _except(len(shape_of(eqn.invars[0])), eqn.params["axis"])
    return Labels((dims,), (dims,) * len(eqn.outvars))


def _tile(eqn: JaxprEqn) -> Labels:
    return _same(eqn, [repeats == 1 for repeats in eqn.params["reps"]])


def _bitcast_convert_type(eqn: JaxprEqn) -> Labels:
    # Between widths the minor dimension comes or goes: it is inside one entry.
    before, after = len(shape_of(eqn.invars[0])), len(shape_of(eqn.outvars[0]))
    dims: Dims = tuple(range(min(before, after)))
    return Labels((dims + (None,) * (before - len(dims)),), (dims + (None,) * (after - len(dims)),))


def _same(eqn: JaxprEqn, alone: list[bool]) -> Labels:
    """The first input and the output have the same dimensions; those that are left `alone` carry an axis."""
    dims = tuple(d if ok else None for d, ok in enumerate(alone))
    return Labels((dims, *((),) * (len(eqn.invars) - 1)), (dims,))


def _except(rank: int, mixed: int) -> Dims:
    return tuple(None if d == mixed else d for d in range(rank))


ENTRIES: dict[str, Entry] = {
    "broadcast_in_dim": labelled(_broadcast_in_dim, _broadcast_params),
    "transpose": labelled(_transpose),
    "squeeze": labelled(_squeeze),
    "rev": labelled(_rev),
    "slice": labelled(_slice, _slice_params),
    "dynamic_slice": labelled(_dynamic_slice, _dynamic_slice_params),
    "dynamic_update_slice": with_rows(labelled(_dynamic_update_slice)),
    "pad": labelled(_pad),
    "concatenate": labelled(_concatenate),
    "stack": labelled(_stack),
    "unstack": labelled(_unstack),
    "split": labelled(_split),
    "tile": labelled(_tile),
    "bitcast_convert_type": labelled(_bitcast_convert_type),
}
