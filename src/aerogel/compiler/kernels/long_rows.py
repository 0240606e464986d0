"""The shapes whose innermost loop XLA's CPU backend makes badly, and the long rows that hold the same entries.

It makes the last axis the innermost loop. One of 9 to 63 entries runs at a third of the speed (up to 8 are unrolled).
Threads share the first axis; where two of them get parts of different lengths and there is no second axis (131,043
entries), the code is scalar: a fifth to a ninth of the speed. Three parts and more are as good as equal ones.
"""

import math
import os
from collections.abc import Set
from typing import Any

from aerogel import _jax
from aerogel._jax import JaxprEqn

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import shape_of
from ..cost.primitives import REDUCE
from ..fusion.once import CALLS, READERS

Dims = tuple[int, ...]

# Measured on two cores (jaxlib 0.10.2; 131,072 to 401,408 entries of float32 and float64): rows of 9 to 42 take 1.0 to
# 2.8 of the time of one row, mostly above 1.2; that ends earlier the more is done to an entry: a quotient at 37,
# a gate at 27. Longer ones lose nothing, and exponentials and sums of squares gain 1.2 to 1.4 up to 56. Rows of 3, 7
# and 8 gain nothing; those of 5 and 6 up to 4 where there are many, and lose a tenth to a fifth where there are few.
ROWS = range(9, 64)
FEWEST = 1 << 14  # entries, so that a branch costs little beside them
# One long row is best where it has two like halves: rows of 784 entries and more take 1.0 to 1.15 of its time, rows of
# 512 up to 1.3.
LONG = 768  # entries of one of several long rows, at the least
FEWEST_LONG = 8  # several long rows, to be shared among threads
FEWEST_ODD = 3  # of unlike halves: better two threads with unequal work than scalar code
UNROLLED = 8  # entries of a last axis
# With so many CPUs a kernel has two parts if it reads and writes twice 256 kB, as work on the entries of an array of
# that size does (XLA's `DefaultCostModel`: the root of the CPUs, rounded up; with more CPUs few sizes have two parts).
TWO_PARTS = range(2, 5)
PART_BYTES = 1 << 18
SUMS = frozenset(("reduce_sum",))


def is_short(shape: Dims) -> bool:
    """Whether arrays of the shape have short rows, and enough of them."""
    return len(shape) > 1 and shape[-1] in ROWS and math.prod(shape) >= FEWEST


def is_halved(shape: Dims, itemsize: int) -> bool:
    """Whether XLA gives two threads of this machine unlike parts of such an array, and no thread an inner loop."""
    first = next((k for k, n in enumerate(shape) if n != 1), len(shape))
    if first == len(shape) or shape[first] % 2 == 0 or math.prod(shape[first + 1 :]) > UNROLLED:
        return False
    return _cpus() in TWO_PARTS and math.prod(shape) * itemsize >= PART_BYTES


def _cpus() -> int:
    """How many CPUs this process may use, which XLA asks too."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rows_of(shape: Dims, fewest: int = FEWEST_LONG) -> tuple[int, int] | None:
    """How many long rows the short ones make, and their length; None if too few.

    An even number of entries makes one; another as many as there can be, each of whole short rows if those are not
    single entries.
    """
    size = math.prod(shape)
    if size % 2 == 0:
        return 1, size
    count = size if _is_row(shape) else math.prod(shape[:-1])
    parts = (n for n in range(min(count, size // LONG), fewest - 1, -1) if count % n == 0)
    return next(((n, size // n) for n in parts), None)


def _is_row(shape: Dims) -> bool:
    """Whether it has one axis, but for those of one entry."""
    return sum(n != 1 for n in shape) == 1


def shape_worked_on(eqn: JaxprEqn, reductions: Set[str]) -> Dims | None:
    """The shape on whose entries an equation works, each by itself, or all of which it reduces; None for others.

    Other operands are single numbers (which may have axes: a mean that keeps them has), or a key: random numbers are
    made one by one.

    Args:
        eqn: the equation.
        reductions: the names of those that may take the entries in another order.
    """
    name, ins = eqn.primitive.name, [shape_of(x) for x in eqn.invars]
    if eqn.effects or len(eqn.outvars) != 1 or any(v for k, v in eqn.params.items() if "sharding" in k):
        return None
    if name == "random_bits":
        return shape_of(eqn.outvars[0]) if not ins[0] and is_drawn_by_place(eqn) else None
    if name in reductions:
        return ins[0] if len(eqn.params["axes"]) == len(ins[0]) else None
    shape = shape_of(eqn.outvars[0])
    if any(one != shape and math.prod(one) != 1 for one in ins):
        return None
    return shape if name in ELEMENTWISE or name in _jax.OURS else None


def is_drawn_by_place(eqn: JaxprEqn) -> bool:
    """Whether each random word hangs on its place among all entries, and not on how many there are or their shape."""
    return bool(eqn.ctx.threefry_partitionable) and _jax.prng_name(eqn.invars[0].aval) == "threefry2x32"


def is_spread(eqn: JaxprEqn, shape: Dims) -> bool:
    """Whether an equation fills an array of the shape with one number."""
    is_one = eqn.primitive.name == "broadcast_in_dim" and len(eqn.invars) == 1 and not shape_of(eqn.invars[0])
    return is_one and shape_of(eqn.outvars[0]) == shape and eqn.params.get("sharding") is None


def is_fused(eqn: JaxprEqn) -> bool:
    """Whether XLA makes one loop of an equation and of work on entries beside it.

    Of what is scattered and an array that is added to it, it makes one scatter.
    """
    return eqn.primitive.name in READERS | REDUCE | CALLS | {"gather", "scatter-add"}


def params_at(eqn: JaxprEqn, rows: Dims) -> dict[str, Any]:
    """What changes of the parameters of an equation that works on long rows instead."""
    if eqn.primitive.name == "broadcast_in_dim":
        return {"shape": rows, "broadcast_dimensions": ()}
    if eqn.primitive.name == "random_bits":
        return {"shape": rows}
    return {"axes": tuple(range(len(rows)))} if eqn.primitive.name in REDUCE else {}
