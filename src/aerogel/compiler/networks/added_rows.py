"""Products whose rows are added up where indices say: the rows of one factor are added up, and multiplied then.

The gradient of `h[s] @ W` by `h` is such: `segment_sum(g @ W.T, s)` is `segment_sum(g, s) @ W.T`, a product for each
row of `h` and not for each index. Of a product that JAX cuts into pieces each may be added up by its own indices.
"""

import math
from collections.abc import Sequence
from typing import Any

from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..apart import Priced
from ..cost import Machine
from ..known.records import Constant, Facts, the
from ..level import Edit, Level
from ..program import Builder
from ..record import record
from .gathered_rows import added_up, priced
from .network_reader import FLOATS, is_plain


@record
class _Piece:
    """What is read of a product: from `starts` to `limits`; the place and the result of what stands there.

    `scatter` adds it up, if anything does; `gone` are the equations in whose place it is.
    """

    place: int
    out: Var
    starts: Sequence[int]
    limits: Sequence[int]
    scatter: JaxprEqn | None
    gone: frozenset[int]


def spread_before_products(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """The products that are added up where indices say, and are cheaper of what was added up before."""
    if machine.name != "cpu":
        return []
    products = (place for place, eqn in enumerate(level.eqns) if eqn.primitive.name == "dot_general")
    return [one for place in products if (one := _added_before(level, facts, machine, place)) is not None]


def _added_before(level: Level, facts: Facts, machine: Machine, place: int) -> Priced | None:
    eqn = level.eqns[place]
    (product,), readers = eqn.outvars, level.readers(eqn.outvars[0])
    batch = eqn.params["dimension_numbers"][1][0]
    if not is_plain(eqn) or str(product.aval.dtype) not in FLOATS or batch or 0 in product.aval.shape:
        return None
    if not readers or min(readers) < 0:
        return None
    pieces = [_piece(level, facts, eqn, k) for k in dict.fromkeys(readers)]
    found = [piece for piece in pieces if piece is not None]
    if len(found) < len(pieces) or all(piece.scatter is None for piece in found):
        return None
    edits, results, new, outs = list[Edit](), list[Atom](), list[JaxprEqn](), list[Atom]()
    for piece in found:
        builder = Builder(eqn)
        result = _made(eqn, piece, builder)
        if result.aval != piece.out.aval:
            return None
        here = frozenset({piece.place})
        edits.append(Edit(piece.place, here, builder.eqns, {piece.out: result}, here))
        results.append(result)
        outs.append(piece.out)
        new += builder.eqns
    gone = frozenset({place}).union(*(piece.gone for piece in found))
    return priced(level, machine, edits, [level.eqns[k] for k in sorted(gone)], outs, new, results)


def _piece(level: Level, facts: Facts, eqn: JaxprEqn, k: int) -> _Piece | None:
    """What the equation at `k` reads of a product: a part of the columns that is all rows, or the sums of rows."""
    (product,), reader = eqn.outvars, level.eqns[k]
    shape = product.aval.shape
    starts, limits, value, gone, at = (0,) * len(shape), shape, product, frozenset({k}), k
    left = len(eqn.invars[0].aval.shape) - len(eqn.params["dimension_numbers"][0][0])
    if reader.primitive.name == "slice":
        starts, limits = reader.params["start_indices"], reader.params["limit_indices"]
        (value,), after = reader.outvars, level.readers(reader.outvars[0])
        whole = all((starts[d], limits[d]) == (0, shape[d]) for d in range(left))
        if reader.params["strides"] is not None or not whole:
            return None
        at = after[0] if len(after) == 1 else -1
    scatter = level.eqns[at] if at >= 0 else None
    if scatter is not None and _adds_rows(facts, scatter, value, left):
        return _Piece(at, scatter.outvars[0], starts, limits, scatter, gone | {at})
    return None if value is product else _Piece(k, value, starts, limits, None, gone)


def _adds_rows(facts: Facts, eqn: JaxprEqn, updates: Var, left: int) -> bool:
    """Whether an equation adds rows up into zeros, by indices of `left` dimensions, those before a row."""
    if eqn.primitive.name != "scatter-add" or eqn.invars[2] is not updates:
        return False
    (x, index, _), numbers = eqn.invars, eqn.params["dimension_numbers"]
    zero, rank = the(Constant, facts.of(x)), len(updates.aval.shape)
    return (
        zero is not None
        and zero.value == 0
        and len(index.aval.shape) == left + 1
        and tuple(numbers.scatter_dims_to_operand_dims) == tuple(numbers.inserted_window_dims) == (0,)
        and not numbers.operand_batching_dims
        and tuple(numbers.update_window_dims) == tuple(range(left, rank))
        and x.aval.shape[1:] == updates.aval.shape[left:]
        and x.aval.shape[0] < math.prod(index.aval.shape[:-1])
    )


def _made(eqn: JaxprEqn, piece: _Piece, builder: Builder) -> Atom:
    """The piece: rows that were added up before, or all rows, times columns."""
    (own, other), params = eqn.params["dimension_numbers"][0], eqn.params
    left = len(eqn.invars[0].aval.shape) - len(own)
    scatter = piece.scatter

    def call(g: Any, w: Any, *index: Any) -> Any:
        free = [d for d in range(w.ndim) if d not in other]
        for d, start, limit in zip(free, piece.starts[left:], piece.limits[left:], strict=True):
            w = lax.slice_in_dim(w, start, limit, axis=d) if (start, limit) != (0, w.shape[d]) else w
        summed = tuple(own)
        if scatter is not None:
            rows = [d for d in range(g.ndim) if d not in own]
            count, mode = scatter.outvars[0].aval.shape[0], scatter.params["mode"]
            g = added_up(lax.transpose(g, [*rows, *own]), index[0], count, mode)
            summed = tuple(range(1, g.ndim))
        kind = params["preferred_element_type"]
        numbers = ((summed, tuple(other)), ((), ()))
        return lax.dot_general(g, w, numbers, precision=params["precision"], preferred_element_type=kind)

    return builder.call(call, *eqn.invars, *(() if scatter is None else (scatter.invars[1],)))[0]
