"""Sums of many rows whose results are worked on: the library that makes them is given no more than the sum.

XLA's CPU backend hands a sum or extremum, with what is computed entry by entry before and after it, to a library
(`__ynn_fusion`, jaxlib 0.10.2 to 0.12). If the results take more than 128 KiB and something is computed of them, that
does not go through the rows in one pass any more: `abs(x).sum(-1) / 96` takes 3 times as long for 32,769 rows of 96
numbers as for 32,768, and 10 times for rows of 1,000.
"""

from aerogel._jax import JaxprEqn, Var

from ..cost import nbytes
from ..level import Level
from ..program import is_var
from .own_broadcasts import LONGEST_CHAIN, TAKEN, TRIVIAL
from .weighted_sums import is_product_of_matrices

MOST_BYTES = 128 << 10  # of results that the library may go on with
SQUARES = frozenset(("square", "integer_pow"))


def goes_on(level: Level, eqn: JaxprEqn) -> bool:
    """Whether the library would do more than a sum or extremum, and take longer for all of it."""
    (total,) = eqn.outvars
    if not isinstance(total, Var) or nbytes(total.aval) <= MOST_BYTES or is_product_of_matrices(level, eqn):
        return False
    last = _worked_on(level, total) if _is_of_computed(level, eqn) else None
    return last is not None and nbytes(last.aval) > MOST_BYTES


def _is_of_computed(level: Level, eqn: JaxprEqn) -> bool:
    """Whether the library computes what it sums up, and not for others too: squares it sums up as fast as numbers."""
    while True:
        x = eqn.invars[0]
        maker = level.maker(x)
        if maker is None or not is_var(x) or maker.primitive.name not in TAKEN or len(level.readers(x)) != 1:
            return False
        is_square = maker.primitive.name == "mul" and maker.invars[0] is maker.invars[1]
        if not (is_square or maker.primitive.name in TRIVIAL | SQUARES):
            return True
        eqn = maker


def _worked_on(level: Level, total: Var) -> Var | None:
    """What the library makes of a sum up to what is stored; None if nothing, or what repeats along the rows again."""
    v, works = total, False
    for _ in range(LONGEST_CHAIN):
        readers = level.readers(v)
        reader = level.eqns[readers[0]] if len(readers) == 1 and readers[0] >= 0 else None
        if reader is None or not (reader.primitive.name in TAKEN or _is_sum_of_one(reader)):
            break  # it is stored for these, or part of XLA's own kernel
        v = reader.outvars[0]
        if not isinstance(v, Var) or v.aval.size > total.aval.size:
            return None
        works |= reader.primitive.name in TAKEN - TRIVIAL
    return v if works else None


def _is_sum_of_one(eqn: JaxprEqn) -> bool:
    """Whether it is a sum over axes of length one, as transposed broadcasts leave: no more than a view for XLA."""
    shape = eqn.invars[0].aval.shape
    return eqn.primitive.name == "reduce_sum" and all(shape[axis] == 1 for axis in eqn.params["axes"])
