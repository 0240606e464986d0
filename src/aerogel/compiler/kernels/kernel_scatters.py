"""What is scattered to one place, as a slice that is read and written: inside of one kernel."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn

from ..level import Edit, apply_edits
from ..levels import rewrite_levels
from ..program import Builder

# Extrema are missing: in one kernel a value may differ in its last bit from what was kept (see `one_kernel.py`).
COMBINING: dict[str, Callable[[Any, Any], Any]] = {
    "scatter": lambda old, new: new,
    "scatter-add": lax.add,
    "scatter-sub": lax.sub,
    "scatter-mul": lax.mul,
}
MODES = (lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)
INDICES = ("int32", "int64")  # the last place of a dimension is one of them


def why_not(eqn: JaxprEqn, steps: int = 1) -> str | None:
    """Why what is scattered, in so many steps, cannot stand in a kernel; None if it can, as a slice."""
    p, indices = eqn.params, eqn.invars[1].aval
    places = prod(indices.shape[:-1]) // steps
    if places != 1:
        return f"`{eqn.primitive.name}` writes to {places:,} places, one after the other"
    plain = not p["dimension_numbers"].operand_batching_dims and p["mode"] in MODES and indices.dtype.name in INDICES
    combines = eqn.primitive.name in COMBINING and (eqn.primitive.name != "scatter" or p["update_jaxpr"] is None)
    return None if plain and combines else f"`{eqn.primitive.name}` may call a library"


def with_slices(call: ClosedJaxpr) -> ClosedJaxpr:
    """The program with slices in place of what is scattered, at all levels."""
    return rewrite_levels(call, _level)


def _level(jaxpr: Jaxpr) -> Jaxpr:
    edits = [_edit(k, eqn) for k, eqn in enumerate(jaxpr.eqns) if eqn.primitive.name in COMBINING]
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _edit(place: int, eqn: JaxprEqn) -> Edit:
    built = Builder(eqn)
    p = eqn.params
    written = partial(_written, COMBINING[eqn.primitive.name], p["dimension_numbers"], p["mode"])
    (out,) = built.call(written, *eqn.invars)
    return Edit(place, frozenset({place}), built.eqns, {eqn.outvars[0]: out}, frozenset({place}))


def _written(combine: Callable[[Any, Any], Any], numbers: Any, mode: Any, x: Any, indices: Any, updates: Any) -> Any:
    """`x` with one slice combined with the updates."""
    windows = [updates.shape[d] for d in sorted(numbers.update_window_dims)]
    sizes = tuple(1 if d in numbers.inserted_window_dims else windows.pop(0) for d in range(x.ndim))
    at = lax.reshape(indices, (indices.size,))
    starts, fits = [np.zeros((), at.dtype)] * x.ndim, np.bool_(True)
    for k, d in enumerate(numbers.scatter_dims_to_operand_dims):
        wanted = lax.index_in_dim(at, k, 0, keepdims=False)
        starts[d] = lax.clamp(starts[d] * 0, wanted, np.asarray(x.shape[d] - sizes[d], at.dtype))
        fits = lax.bitwise_and(fits, lax.eq(wanted, starts[d]))
    old = lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)
    new = combine(old, lax.reshape(updates, sizes))
    if mode == lax.GatherScatterMode.FILL_OR_DROP:
        new = lax.select(lax.broadcast(fits, sizes), new, old)
    return lax.dynamic_update_slice(x, new, starts, allow_negative_indices=False)
