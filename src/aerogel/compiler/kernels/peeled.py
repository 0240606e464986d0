"""Work on an odd number of entries in two parts: all entries but the last, and that one.

XLA gives two threads unlike parts of an odd number of entries, and its code for those is scalar (`long_rows.py`). All
but one are two like halves. Joining both parts costs a copy, a fifth of what scalar code does, and the only other way
for slices of a longer array (`x[1:] - x[:-1]` of an even number of entries) and for numbers without divisors.
"""

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes.rebind import bind, shape_of
from ..program import Builder
from .long_rows import Dims, params_at


def is_run(eqn: JaxprEqn) -> bool:
    """Whether an equation takes entries that lie beside one another."""
    return eqn.primitive.name == "slice" and not any(n != 1 for n in eqn.params["strides"] or ())


def in_two_parts(
    builder: Builder,
    shape: Dims,
    eqns: Sequence[JaxprEqn],
    ins: Sequence[Var],
    outs: Sequence[Var],
    runs: Mapping[Var, JaxprEqn],
) -> list[Atom]:
    """Adds equations to a builder that do to both parts what `eqns` do to arrays of the shape; what `outs` become.

    Args:
        builder: takes the equations.
        shape: of the arrays, of whose entries each is worked on by itself, or all of them summed.
        eqns: what is done.
        ins: what they read, arrays of the shape and single numbers.
        outs: of what they make.
        runs: of what they read, what makes the slices of something longer: parts of that are read instead.
    """
    axis = next(d for d, n in enumerate(shape) if n != 1)
    borders = (0, shape[axis] - 1, shape[axis])

    def part(x: Any, v: Var, start: int, stop: int) -> Any:
        if shape_of(v) != shape:
            return x
        first, last = [0] * len(shape), list(shape)
        if v in runs:
            first, last = (list(runs[v].params[name]) for name in ("start_indices", "limit_indices"))
        last[axis] = first[axis] + stop
        first[axis] += start
        return lax.slice(x, first, last)

    def call(*values: Any) -> list[Any]:
        made = []
        for start, stop in pairwise(borders):
            here = (*shape[:axis], stop - start, *shape[axis + 1 :])
            env = {v: part(x, v, start, stop) for v, x in zip(ins, values, strict=True)}
            made.append(at_shape(here, eqns, env, outs))
        joined = []
        for v, *parts in zip(outs, *made, strict=True):
            is_array = shape_of(v) == shape
            joined.append(lax.concatenate(parts, axis) if is_array else reduce(operator.add, parts))
        return joined

    read = [runs[v].invars[0] if v in runs else v for v in ins]
    return [builder.as_weak_as(v, x) for v, x in zip(outs, builder.call(call, *read), strict=True)]


def at_shape(shape: Dims, eqns: Sequence[JaxprEqn], env: dict[Any, Any], outs: Sequence[Var]) -> list[Any]:
    """What equations that work on entries make of values in another shape."""
    for eqn in eqns:
        inputs = [np.asarray(x.val, x.aval.dtype) if isinstance(x, Literal) else env[x] for x in eqn.invars]
        env.update(zip(eqn.outvars, bind(eqn, inputs, eqn.params | params_at(eqn, shape)), strict=True))
    return [env[v] for v in outs]
