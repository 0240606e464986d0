"""Sums of rows that hold one number, at a place that an index says, and zeros: that number, or 0 out of bounds.

The gradient of a cross-entropy sums up such rows: with `jax.nn.one_hot(labels, n)` they are compared, and a label's
log-probability, picked from its row, gives a number back that is added to zeros. No form rounds. What is only added to
something else then, XLA adds in place.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Var

from ..fusion.canonical import linear_in, one_entry, sums_rows
from ..known.picks import batched_pick
from ..known.records import Facts, OneHot, the
from ..level import Edit, Level
from ..program import Builder


def one_hot_sums(level: Level, facts: Facts) -> list[Edit]:
    """An edit for each sum along the dimension that indices pick from."""
    sums = (place for place, eqn in enumerate(level.eqns) if eqn.primitive.name == "reduce_sum")
    return [edit for place in sums for edit in _counted(level, facts, place)]


def _counted(level: Level, facts: Facts, place: int) -> list[Edit]:
    eqn = level.eqns[place]
    (x,), out = eqn.invars, eqn.outvars[0].aval
    known = the(OneHot, facts.of(x))
    if known is None or tuple(eqn.params["axes"]) != (known.dim,) or eqn.params.get("out_sharding") is not None:
        return []
    if out.weak_type or np.dtype(known.index.aval.dtype).itemsize < 4:
        return []
    n = x.aval.shape[known.dim]
    at = [d - (d > known.dim) for d in known.along if d >= 0]

    def is_there(i: Any) -> Any:
        i = lax.reshape(i, tuple(size for size, d in zip(i.shape, known.along, strict=True) if d >= 0))
        inside = lax.lt(i, np.asarray(n, i.dtype))
        if jnp.issubdtype(i.dtype, jnp.signedinteger):
            inside = lax.bitwise_and(inside, lax.ge(i, np.asarray(0, i.dtype)))
        order = sorted(range(len(at)), key=lambda k: at[k])
        inside = lax.transpose(inside, order) if order != list(range(len(at))) else inside
        return lax.convert_element_type(lax.broadcast_in_dim(inside, out.shape, sorted(at)), out.dtype)

    builder = Builder(eqn)
    (result,) = builder.call(is_there, known.index)
    return [Edit(place, frozenset({place}), builder.eqns, {eqn.outvars[0]: result}, frozenset({place}))]


def scattered_sums(level: Level, place: int) -> list[Edit]:
    """An edit for each sum of rows into which the scatter at `place` puts an entry each, shifted and signed or not."""
    eqn = level.eqns[place]
    one = one_entry(level, eqn)
    if one is None:
        # `zeros.at[arange(n), t].add(v)` counts its rows; as a scatter along one dimension it is asked once more.
        edit = batched_pick(level, place) if _is_summed(level, eqn.outvars[0]) else None
        return [] if edit is None else [edit]
    edits = list[Edit]()
    for value, total_of in linear_in(level, eqn.outvars[0], one.dim):
        for k in level.readers(value):
            if k >= 0 and sums_rows(level.eqns[k], one.dim):
                builder = Builder(level.eqns[k])
                total = total_of(builder, builder.call(one.summed, *eqn.invars[1:])[0])
                edits.append(Edit(k, frozenset({k}), builder.eqns, {level.eqns[k].outvars[0]: total}, frozenset({k})))
    return edits


def _is_summed(level: Level, x: Var) -> bool:
    """Whether a sum reads a value, or its negative."""
    readers = [level.eqns[k] for k in level.readers(x) if k >= 0]
    return any(
        eqn.primitive.name == "reduce_sum" or (eqn.primitive.name == "neg" and _is_summed(level, eqn.outvars[0]))
        for eqn in readers
    )
