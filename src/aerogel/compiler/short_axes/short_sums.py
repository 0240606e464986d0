"""What it costs to compute a value anew for a sum beside a short last axis.

XLA's CPU backend hands a sum such as `[6400, 3] -> [3]` to a library, with all that feeds it (jaxlib 0.10.2). That
computes operation by operation, and rows of 2 to 7 one by one where an operand is spread over the others: 2 ns an entry
and operation, 20 times what the same takes in a loop of XLA's own. Where all is made from much smaller arrays the sum
is made entry by entry instead (`short_axes.py`), and costs nothing of the kind.

A sum of what is read otherwise, too, is a call of its own: what it adds up is written for it, and read row by row.
"""

from collections.abc import Collection, Iterator, Sequence

import jax.numpy as jnp

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..level import Level
from ..loop import Loop, as_loop
from ..program import is_var
from .short_axes import AMPLIFIED, FEWEST

LANES = 16  # shorter rows fill no register
FEWEST_CALLED = 1024  # entries: fewer are added up in the time that a call takes
VECTOR = 8  # entries of float32: rows that fill one are computed as vectors, and as fast as anything


def row_by_row(level: Level, loop: Loop, readers: Sequence[int]) -> set[int]:
    """The ids of the equations of a loop's step that the library would compute so, were they computed in its readers.

    The readers are places of loops in `level`.
    """
    shapes = {shape for place in readers for shape in _summed(level, place)}
    found: set[int] = set()
    if not shapes:
        return found
    broadcasts, amplified = set[Var](), set[Var]()
    for eqn in loop.body.eqns:
        name, v = eqn.primitive.name, eqn.outvars[0]
        if name != "broadcast_in_dim" and name not in ELEMENTWISE:
            continue
        given = [x for x in eqn.invars if is_var(x)]
        if all(x in amplified or AMPLIFIED * x.aval.size <= v.aval.size for x in given):
            amplified.add(v)
        elif name == "broadcast_in_dim":
            broadcasts.add(v)
        elif v.aval.shape in shapes and any(x in broadcasts or x.aval.size < v.aval.size for x in given):
            found.add(id(eqn))
    return found


def calls(loop: Loop, read: Collection[Atom]) -> set[int]:
    """The ids of the sums of a loop's step that would be calls of the library, were they made where `read` is read.

    Measured on two cores (jaxlib 0.10.2), for each number added up: 3.1 ns of 200 x 5 x 5 over the middle axis, 1.4 of
    these over the last one, 2.0 of 2,000 x 3, 0.9 of 2,000 x 8; 0.3 of 3 x 2,000, 0.5 of 20 x 5 x 5.
    """
    sums = (eqn for eqn in loop.body.eqns if eqn.primitive.name == "reduce_sum")
    return {id(eqn) for eqn in sums if _is_call(eqn) and any(eqn.invars[0] is v for v in read)}


def _is_call(eqn: JaxprEqn) -> bool:
    aval = eqn.invars[0].aval
    return aval.size >= FEWEST_CALLED and aval.shape[-1] < LANES and jnp.issubdtype(aval.dtype, jnp.floating)


def _summed(level: Level, place: int) -> Iterator[tuple[int, ...]]:
    """The shapes of what a loop sums beside a short last axis."""
    loop = as_loop(level.eqns[place])
    assert loop is not None
    for eqn in loop.body.eqns:
        if eqn.primitive.name == "reduce_sum" and _is_beside(eqn):
            yield eqn.invars[0].aval.shape


def _is_beside(eqn: JaxprEqn) -> bool:
    shape, axes = eqn.invars[0].aval.shape, eqn.params["axes"]
    large = eqn.invars[0].aval.size >= FEWEST
    return large and bool(axes) and len(shape) - 1 not in axes and 2 <= shape[-1] < VECTOR
