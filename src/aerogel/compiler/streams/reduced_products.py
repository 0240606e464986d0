"""Products that are reduced as they are made: XLA's CPU backend hands both to a library, and nothing is stored."""

import numpy as np

from aerogel._jax import JaxprEqn, Var

from ..cost.work import dot_shape
from ..level import Level
from ..readers.own_broadcasts import ROOTS, TAKEN
from .streams import MOVES, Stream

# What of that it does not take along from a product.
ENTRYWISE = TAKEN - {"convert_element_type", *MOVES}
# Of square results the library writes what it reduces, if an operand takes more (jaxlib 0.10.2, minima along rows):
# 5,000 x 5,000 by 3 numbers of float64 take 0.25 ns an entry, by 4 numbers 3.7 ns, 8,000 x 4,160 by 4 again 0.2 ns.
MOST_OF_SQUARE = 128 << 10
# Operands up to which it was measured.
MOST = 4 << 20


def is_reduced_at_once(level: Level, v: Var) -> bool:
    """Whether a product, or what is made of it with numbers that all entries share, is reduced where it is made.

    Blocks of it take 1.1 to 2.5 times as long: each starts the call anew. Where sums over rows or columns are added to
    it (squared distances), the call makes these as well, and slowly.
    """
    maker = level.maker(v)
    if maker is None or not _is_plain_product(maker):
        return False
    _, m, n, k = dot_shape(maker)
    operand = max(m, n) * k * v.aval.dtype.itemsize
    if operand > (MOST_OF_SQUARE if m == n else MOST):
        return False
    while (reader := _only_reader(level, v)) is not None:
        if reader.primitive.name in ROOTS:
            return True
        if reader.primitive.name not in ENTRYWISE or any(x.aval.size > 1 for x in reader.invars if x is not v):
            return False
        (v,) = reader.outvars
    return False


def is_stored_by_none(stream: Stream) -> bool:
    """Whether all that is large in a stream is made in such calls: products, and what leads from them to reductions."""
    level = stream.level
    makers = [level.maker(v) for v in stream.large]
    products = [eqn for eqn in makers if eqn is not None and _is_plain_product(eqn)]
    dtypes = {v.aval.dtype for v in stream.large}
    if not products or len(dtypes) > 1:
        return False
    between = {*ENTRYWISE, *MOVES}
    if any(eqn is None or not (eqn in products or eqn.primitive.name in between) for eqn in makers):
        return False
    readers = [_only_reader(level, v) for v in stream.large]
    return all(eqn is not None and eqn.primitive.name in {*between, *ROOTS} for eqn in readers)


def _is_plain_product(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "dot_general" or eqn.outvars[0].aval.ndim != 2:
        return False
    types = {x.aval.dtype for x in (*eqn.invars, *eqn.outvars)}
    return not eqn.params["dimension_numbers"][1][0] and types in ({np.dtype(np.float32)}, {np.dtype(np.float64)})


def _only_reader(level: Level, v: Var) -> JaxprEqn | None:
    """The equation that reads a value, once; None if there are others, or it is a result."""
    readers = level.readers(v)
    if len(readers) != 1 or readers[0] < 0:
        return None
    eqn = level.eqns[readers[0]]
    return eqn if sum(x is v for x in eqn.invars) == 1 else None
