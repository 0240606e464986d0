"""Parts of large values by a mask: blocks lie along one axis of the whole, and a part has no such axis.

The quadrants of one table of all pairs (a maximum mean discrepancy by one Gram matrix) are sums of slices, and the
gradient pads what comes back. A sum over a slice is one over the whole in which nothing else counts; what is repeated
and padded is chosen inside, and the padding outside. Both are read block by block, as the whole is.

What has one reader only XLA makes in part; with several it is made as a whole, so nothing is computed for nothing.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes.rebind import bind
from ..cost import nbytes
from ..level import Edit, Level, apply_edits
from ..loop import is_float
from ..program import Builder, is_var
from .streams import SMALLER

Window = Sequence[tuple[int, int]]  # start and end along each dimension


def with_masked_parts(jaxpr: Jaxpr, least_bytes: int, *, sums: bool) -> tuple[Jaxpr, list[Var]]:
    """A level in which parts of values of at least so many bytes are read by masks, and what these make.

    It is the same object if there are none. With `sums`, what adds up a slice adds up the whole: in another order.
    """
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    if names.isdisjoint(("slice", "pad")):
        return jaxpr, []
    level = Level(jaxpr)
    edits = [edit for place in range(len(jaxpr.eqns)) for edit in _edits(level, place, least_bytes, sums)]
    if not edits:
        return jaxpr, []
    masked = [v for edit in edits for eqn in edit.eqns if eqn.primitive.name == "select_n" for v in eqn.outvars]
    return apply_edits(jaxpr, edits)[0], masked


def _edits(level: Level, place: int, least_bytes: int, sums: bool) -> list[Edit]:
    eqn = level.eqns[place]
    if eqn.primitive.name == "pad" and nbytes(eqn.outvars[0].aval) >= least_bytes:
        edit = _padded(level, place)
        return [] if edit is None else [edit]
    if eqn.primitive.name != "slice":
        return []
    x, window = eqn.invars[0], _window_of_slice(eqn)
    if window is None or not is_var(x) or x not in level.made_by or nbytes(x.aval) < least_bytes:
        return []
    readers = level.readers(eqn.outvars[0])
    if len(level.readers(x)) < 2 or -1 in readers or not all(_reduces(level.eqns[k], sums) for k in readers):
        return []
    return [_reduced(level, k, x, window) for k in readers]


def _reduces(eqn: JaxprEqn, sums: bool) -> bool:
    return eqn.primitive.name in ("reduce_max", "reduce_min", *(("reduce_sum",) if sums else ()))


def _padded(level: Level, place: int) -> Edit | None:
    """What is repeated and padded, as a choice: what is repeated is small, and padded itself."""
    eqn = level.eqns[place]
    maker = level.maker(eqn.invars[0])
    window = _window_of_pad(eqn)
    if window is None or maker is None or maker.primitive.name != "broadcast_in_dim":
        return None
    small, dims = maker.invars[0], maker.params["broadcast_dimensions"]
    if nbytes(small.aval) * SMALLER > nbytes(eqn.outvars[0].aval):
        return None
    shape, config = eqn.outvars[0].aval.shape, eqn.params["padding_config"]
    whole = [n == maker.outvars[0].aval.shape[d] for n, d in zip(small.aval.shape, dims, strict=True)]
    own = [config[d] if is_whole else (0, 0, 0) for d, is_whole in zip(dims, whole, strict=True)]

    def run(x: Any, outside: Any) -> Any:
        inside = lax.broadcast_in_dim(lax.pad(x, outside, own) if own else x, shape, dims)
        return lax.select(_inside(shape, window), inside, lax.full(shape, outside))

    builder = Builder(eqn)
    (out,) = builder.call(run, small, eqn.invars[1])
    here = frozenset({place})
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: builder.as_weak_as(eqn.outvars[0], out)}, here)


def _reduced(level: Level, place: int, x: Var, window: Window) -> Edit:
    """What reduces a slice, as a reduction of the whole; along what is left it is cut afterwards."""
    eqn = level.eqns[place]
    shape, axes = x.aval.shape, eqn.params["axes"]
    mask = [(start, end) if d in axes else (0, shape[d]) for d, (start, end) in enumerate(window)]
    left = [one for d, one in enumerate(window) if d not in axes]

    def run(x: Any) -> Any:
        nothing = lax.full_like(x, _nothing(eqn.primitive.name, x.dtype))
        counted = lax.select(_inside(shape, mask), x, nothing) if tuple(mask) != _all(shape) else x
        (whole,) = bind(eqn, [counted], eqn.params)
        return lax.slice(whole, [start for start, _ in left], [end for _, end in left])

    builder = Builder(eqn)
    (out,) = builder.call(run, x)
    here = frozenset({place})
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: builder.as_weak_as(eqn.outvars[0], out)}, here)


def _nothing(name: str, dtype: Any) -> Any:
    if name == "reduce_sum":
        return 0
    low, high = (-np.inf, np.inf) if is_float(dtype) else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    return low if name == "reduce_max" else high


def _all(shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((0, n) for n in shape)


def _inside(shape: tuple[int, ...], window: Window) -> Any:
    """A mask of the window: of each dimension a row of its own, which all blocks share."""
    mask = lax.full(shape, True)
    for d, (n, (start, end)) in enumerate(zip(shape, window, strict=True)):
        if (start, end) != (0, n):
            places = lax.iota(np.int32, n)
            row = lax.bitwise_and(lax.ge(places, np.int32(start)), lax.lt(places, np.int32(end)))
            mask = lax.bitwise_and(mask, lax.broadcast_in_dim(row, shape, (d,)))
    return mask


def _window_of_slice(eqn: JaxprEqn) -> Window | None:
    if eqn.params["strides"] is not None and any(step != 1 for step in eqn.params["strides"]):
        return None
    return list(zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True))


def _window_of_pad(eqn: JaxprEqn) -> Window | None:
    config, shape = eqn.params["padding_config"], eqn.outvars[0].aval.shape
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        return None
    return [(int(low), int(n - high)) for (low, high, _), n in zip(config, shape, strict=True)]
