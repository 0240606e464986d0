"""Products of what is joined from pieces, taken piece by piece: `concatenate([a, b]) @ W` is `a @ W1 + b @ W2`.

That pays where a piece repeats a smaller value (the features of a node at each of its edges, the query next to each
key): its product is made once and repeated. A gradient has the same in two more forms: the pieces of a weight's
gradient, which are joined, and slices of a product, of which those that are summed up need no product of their own.
"""

from dataclasses import dataclass

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from .level import Edit, Level
from .program import Builder, is_var
from .records import Facts, Spread, the

SAVED = 0.8  # at most this part of the flops may be left


@dataclass(frozen=True)
class _Piece:
    """A piece of a joined operand: rows `start` to `stop` of it, which repeat `source`."""

    start: int
    stop: int
    source: Atom
    along: tuple[int, ...]  # for each dimension of the source its dimension in the piece


def joined(level: Level, facts: Facts, place: int) -> Edit | None:
    """The product at `place` piece by piece, if one of its operands is joined from pieces of which some repeat."""
    eqn = level.eqns[place]
    if eqn.params.get("out_sharding") is not None:
        return None
    for side, x in enumerate(eqn.invars):
        maker = level.made_by.get(x, -1) if is_var(x) else -1
        if maker < 0 or level.eqns[maker].primitive.name != "concatenate":
            continue
        made = level.eqns[maker]
        pieces = _pieces(made, facts)
        contract, batch = (dims[side] for dims in eqn.params["dimension_numbers"])
        dim = made.params["dimension"]
        left = sum((p.stop - p.start) / x.aval.shape[dim] / _repeats(p, x, dim) for p in pieces)
        if left > SAVED or dim in batch or any(d >= 0 and d in batch for p in pieces for d in p.along[:0]):
            continue
        builder = Builder(eqn)
        results = [_product_of(builder, eqn, side, dim, piece) for piece in pieces]
        if dim in contract:
            (out,) = builder.call(lambda *ys: _total(*ys), *results)
        else:
            at = _place_in_result(eqn, side, dim)
            (out,) = builder.call(lambda *ys: lax.concatenate(ys, at), *results)
        if out.aval == eqn.outvars[0].aval:
            return Edit(place, frozenset({place}), builder.eqns, {eqn.outvars[0]: out}, frozenset({place, maker}))
    return None
