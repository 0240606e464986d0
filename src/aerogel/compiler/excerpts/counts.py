"""How often indices take each value: sums of one-hot rows along what is indexed, and products of two one-hot matrices.

`one_hot(y, n).sum(0)` counts classes, `one_hot(y, n).T @ one_hot(p, n)` is a confusion matrix. XLA on CPU writes the
one-hot matrix out; ones that are added where the indices say read the indices alone. Counted in integers, no number is
rounded before the count is.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import JaxprEqn, Literal

from ..known.one_hot import not_repeated
from ..known.records import Facts, OneHot, the
from ..level import Edit, Level
from ..program import Builder

FEWEST = 1024  # entries of one-hot rows: below, starting a kernel takes longer than any of this
FEWEST_PLACES = 4  # of as few comparisons as 3 XLA makes vector code


def counts(level: Level, facts: Facts) -> list[Edit]:
    """An edit for each sum and product that counts."""
    edits = list[Edit]()
    for place, eqn in enumerate(level.eqns):
        find = {"reduce_sum": _summed, "dot_general": _paired}.get(eqn.primitive.name)
        found = None if find is None or not _is_plain(eqn) else find(level, facts, eqn)
        if found is not None:
            edits.append(_edit(place, eqn, *found))
    return edits


# The one-hot operands, and for each its dimensions but the one that is picked from: first those that the result has,
# then those that are counted along, in one order for all; the dimension of the result that the first one picks from.
_Found = tuple[Sequence[tuple[OneHot, Sequence[int]]], int]


def _is_plain(eqn: JaxprEqn) -> bool:
    out, values = eqn.outvars[0].aval, (*eqn.invars, *eqn.outvars)
    return (
        not any(isinstance(x, Literal) or _jax.explicit_mesh(x.aval) for x in values)
        and eqn.params.get("out_sharding") is None
        and not out.weak_type
        and jnp.issubdtype(out.dtype, jnp.number)
        and math.prod(out.shape) >= FEWEST_PLACES
        and max(math.prod(x.aval.shape) for x in values) < 1 << 31
    )


def _known(level: Level, facts: Facts, x: Any) -> OneHot | None:
    """That a value is one-hot, with an index for all of its dimensions but those along which it is repeated."""
    known, shape = the(OneHot, facts.of(x)), x.aval.shape
    if known is None or np.dtype(known.index.aval.dtype).itemsize < 4 or math.prod(shape) < FEWEST:
        return None
    _, known, dims = not_repeated(level, facts, x, known, [(d,) for d in range(len(shape))])
    along = tuple(dims[d][0] if d >= 0 and dims[d] else -1 for d in known.along)
    (dim,) = dims[known.dim] or (-1,)
    return OneHot(dim, known.index, along) if dim >= 0 and dim not in along else None


def _summed(level: Level, facts: Facts, eqn: JaxprEqn) -> _Found | None:
    (x,), axes = eqn.invars, [int(d) for d in eqn.params["axes"]]
    known = _known(level, facts, x)
    if known is None or known.dim in axes:
        return None
    counted = [d for d in range(len(x.aval.shape)) if d in known.along]
    kept = [d for d in counted if d not in axes]
    if len(kept) == len(counted):
        return None
    return [(known, [*kept, *(d for d in counted if d in axes)])], sum(d < known.dim for d in kept)


def _paired(level: Level, facts: Facts, eqn: JaxprEqn) -> _Found | None:
    contract, batch = eqn.params["dimension_numbers"]
    found = list[tuple[OneHot, Sequence[int]]]()
    for x, summed, kept in zip(eqn.invars, contract, batch, strict=True):
        known, own = _known(level, facts, x), (*kept, *summed)
        if known is None or known.dim in own or len(own) != len(x.aval.shape) - 1:
            return None
        found.append((known, own))
    return found, len(batch[0])


def _edit(place: int, eqn: JaxprEqn, hot: Sequence[tuple[OneHot, Sequence[int]]], at: int) -> Edit:
    """Ones added up at the places of all operands; dimension `at` of the counts is the first that they pick from."""
    out, shapes = eqn.outvars[0].aval, [x.aval.shape for x in eqn.invars]
    if eqn.primitive.name == "reduce_sum":
        (known, order), (whole,), axes = hot[0], shapes, eqn.params["axes"]
        own = {known.dim, *(d for d in order if d not in axes)}
        kept = [d for d in range(len(whole)) if d not in axes]
        to = [k for k, d in enumerate(kept) if d in own]
        times = math.prod(whole[int(d)] for d in axes if d not in known.along)
    else:
        to, times = list(range(len(out.shape))), 1
    shape = tuple(out.shape[d] for d in to)

    def call(*indices: Any) -> Any:
        each = [_aligned(i, *one, own) for own, one, i in zip(shapes, hot, indices, strict=True)]
        flat = _flat(each, shape, at)
        numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        zeros, ones = lax.full((math.prod(shape),), 0, np.int32), lax.full((flat.size,), 1, np.int32)
        index = lax.reshape(flat, (flat.size, 1))
        counted = lax.scatter_add(zeros, index, ones, numbers, mode=lax.GatherScatterMode.FILL_OR_DROP)
        counted = lax.reshape(counted * np.int32(times) if times != 1 else counted, shape)
        return lax.broadcast_in_dim(lax.convert_element_type(counted, out.dtype), out.shape, to)

    builder = Builder(eqn)
    (result,) = builder.call(call, *(known.index for known, _ in hot))
    return Edit(place, frozenset({place}), builder.eqns, {eqn.outvars[0]: result}, frozenset({place}))


def _aligned(index: Any, known: OneHot, order: Sequence[int], shape: Sequence[int]) -> Any:
    """An index with the dimensions that its one-hot operand of that shape has, in the order given."""
    to = [list(order).index(d) for d in known.along if d >= 0]
    index = lax.reshape(index, tuple(n for n, d in zip(index.shape, known.along, strict=True) if d >= 0))
    index = lax.transpose(index, sorted(range(len(to)), key=to.__getitem__))
    return lax.broadcast_in_dim(index, tuple(shape[d] for d in order), sorted(to))


def _flat(indices: Sequence[Any], shape: Sequence[int], at: int) -> Any:
    """Places in a result of that shape, row by row; -1 for what is out of bounds.

    Args:
        indices: arrays of one shape, for each dimension of the result from `at` on that is picked from; their leading
            dimensions are the others of the result.
    """
    if len(indices) == len(shape) == 1:
        return indices[0]
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    picked = range(at, at + len(indices))
    others = [d for d in range(len(shape)) if d not in picked]
    terms, inside = list[Any](), list[Any]()
    for d, i in zip(picked, indices, strict=True):
        inside += [lax.ge(i, lax.full_like(i, 0)), lax.lt(i, lax.full_like(i, shape[d]))]
        terms.append(lax.convert_element_type(i, np.int32) * np.int32(strides[d]))
    for k, d in enumerate(others):
        terms.append(lax.broadcasted_iota(np.dtype(np.int32), indices[0].shape, k) * np.int32(strides[d]))
    flat = reduce(lax.add, terms)
    return lax.select(reduce(lax.bitwise_and, inside), flat, lax.full_like(flat, -1))
