"""What it costs to compute a value anew for a sum beside a short last axis.

XLA's CPU backend hands a sum such as `[6400, 3] -> [3]` to a library, with all that feeds it (jaxlib 0.10.2). That
computes operation by operation, and rows of 2 to 7 one by one where an operand is spread over the others: 2 ns an entry
and operation, 20 times what the same takes in a loop of XLA's own. Where all is made from much smaller arrays the sum
is made entry by entry instead (`short_axes.py`), and costs nothing of the kind.
"""

from collections.abc import Iterator, Sequence

from aerogel._jax import JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..level import Level
from ..loop import Loop, as_loop
from ..program import is_var
from .short_axes import AMPLIFIED, FEWEST

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
