"""Writes into part of a buffer: what they cover, and the same write under a mask.

A masked write goes beyond the end of the buffer where the mask is false, if such a write is dropped, or else puts back
what stands there: the buffer is then like one that was not written, and no copy of it needs to be kept to choose from.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn

from ..applied import applies_function
from ..axes.rebind import bind
from ..program import Builder

# What a scatter writes where nothing should change. Minus 0 is added: with 0, -0.0 would become 0.
NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "scatter-add": lambda update: lax.neg(lax.full_like(update, 0)),
    "scatter-sub": lambda update: lax.full_like(update, 0),
    "scatter-mul": lambda update: lax.full_like(update, 1),
    "scatter-min": lambda update: lax.full_like(update, _bounds(update.dtype)[1]),
    "scatter-max": lambda update: lax.full_like(update, _bounds(update.dtype)[0]),
}
WRITES = ("scatter", "dynamic_update_slice", *NEUTRAL)


def written(eqn: JaxprEqn) -> Atom:
    """What a write puts into its buffer."""
    return eqn.invars[1] if eqn.primitive.name == "dynamic_update_slice" else eqn.invars[2]


def covered(eqn: JaxprEqn) -> dict[int, int]:
    """The buffer's dimensions along which a write treats every entry alike, with the same dimension of its update."""
    buffer, update = eqn.invars[0].aval.shape, written(eqn).aval.shape
    if eqn.primitive.name == "dynamic_update_slice":
        return {d: d for d in range(len(buffer)) if buffer[d] == update[d]}
    p = eqn.params["dimension_numbers"]
    left_out = {*p.inserted_window_dims, *p.operand_batching_dims}
    windows = zip((d for d in range(len(buffer)) if d not in left_out), p.update_window_dims, strict=True)
    found = {d: u for d, u in windows if d not in p.scatter_dims_to_operand_dims and buffer[d] == update[u]}
    by_index = [u for u in range(len(update)) if u not in p.update_window_dims]
    batches = zip(p.operand_batching_dims, p.scatter_indices_batching_dims, strict=True)
    return found | {d: by_index[k] for d, k in batches}


def masked(builder: Builder, eqn: JaxprEqn, buffer: Atom, mask: Atom, lanes: Sequence[int]) -> Atom:
    """`buffer` after the write, where `mask` is true.

    Args:
        builder: takes the equations.
        eqn: the write.
        buffer: what is written into, in place of the equation's own.
        mask: booleans, one for each entry along the buffer's dimensions `lanes`.
        lanes: dimensions that the write covers.
    """
    dims = covered(eqn)
    beyond = _beyond(eqn, lanes)
    if beyond is not None:
        return _dropped(builder, eqn, buffer, mask, lanes, beyond)

    def write(buffer: Any, mask: Any, *rest: Any) -> Any:
        update, others = (rest[0], rest[1:]) if eqn.primitive.name == "dynamic_update_slice" else (rest[1], rest[:1])
        here = lax.broadcast_in_dim(mask, update.shape, [dims[d] for d in lanes])
        neutral = NEUTRAL.get(eqn.primitive.name)
        kept = _standing(eqn, buffer, update, others) if neutral is None else neutral(update)
        update = lax.select(here, update, kept)
        order = (update, *others) if eqn.primitive.name == "dynamic_update_slice" else (*others, update)
        return bind(eqn, (buffer, *order), eqn.params)

    (out,) = builder.call(write, buffer, mask, *eqn.invars[1:])
    return out


def can_be_masked(eqn: JaxprEqn, lanes: Sequence[int]) -> bool:
    """Whether there is a write that changes nothing: of booleans no sum is, nor is what applies a function in place."""
    if eqn.primitive.name in NEUTRAL:
        dtype = eqn.outvars[0].aval.dtype
        # Of complex numbers infinity times 1 is no number.
        is_exact = not jnp.issubdtype(dtype, jnp.complexfloating) or eqn.primitive.name in (
            "scatter-add",
            "scatter-sub",
        )
        return _jax.is_number(dtype) and is_exact
    return not applies_function(eqn) or _beyond(eqn, lanes) is not None


def _bounds(dtype: Any) -> tuple[Any, Any]:
    """The least and the largest value of a type, of which some short floats have no infinities."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    if np.isinf(np.asarray(np.inf, dtype).astype(np.float32)):
        return -np.inf, np.inf
    return jnp.finfo(dtype).min, jnp.finfo(dtype).max


def _beyond(eqn: JaxprEqn, lanes: Sequence[int]) -> int | None:
    """An index at which nothing is written, for a write whose lanes have an index each; None where there is none."""
    p = eqn.params
    if eqn.primitive.name != "scatter" or p["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        return None
    numbers, index = p["dimension_numbers"], eqn.invars[1].aval
    beyond = max((eqn.invars[0].aval.shape[d] for d in numbers.scatter_dims_to_operand_dims), default=0)
    own = beyond > 0 and set(lanes) <= set(numbers.operand_batching_dims)
    return beyond if own and beyond <= np.iinfo(index.dtype).max else None


def _dropped(builder: Builder, eqn: JaxprEqn, buffer: Atom, mask: Atom, lanes: Sequence[int], beyond: int) -> Atom:
    """A write that goes beyond the end where a mask is false."""
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[1].aval.shape
    to = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    alone = math.prod(shape[:-1]) == mask.aval.size  # else what is dropped of a lane has one index more than once
    params = dict(eqn.params, unique_indices=eqn.params["unique_indices"] and alone)

    def write(buffer: Any, mask: Any, index: Any, update: Any) -> Any:
        here = lax.broadcast_in_dim(mask, index.shape, [to[d] for d in lanes])
        return bind(eqn, (buffer, lax.select(here, index, lax.full_like(index, beyond)), update), params)

    (out,) = builder.call(write, buffer, mask, *eqn.invars[1:])
    return out


def _standing(eqn: JaxprEqn, buffer: Any, update: Any, others: Sequence[Any]) -> Any:
    """What a buffer holds where it is about to be written. Outside of it, where nothing is written, anything."""
    if eqn.primitive.name == "dynamic_update_slice":
        return lax.dynamic_slice(buffer, others, update.shape)
    p = eqn.params["dimension_numbers"]
    left_out = {*p.inserted_window_dims, *p.operand_batching_dims}
    window = iter(p.update_window_dims)
    sizes = [1 if d in left_out else update.shape[next(window)] for d in range(buffer.ndim)]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=p.update_window_dims,
        collapsed_slice_dims=p.inserted_window_dims,
        start_index_map=p.scatter_dims_to_operand_dims,
        operand_batching_dims=p.operand_batching_dims,
        start_indices_batching_dims=p.scatter_indices_batching_dims,
    )
    return lax.gather(buffer, others[0], numbers, sizes, mode=lax.GatherScatterMode.CLIP)
