"""Sums and extrema along an axis that is not the last, which XLA takes entry by entry: row by row.

XLA's CPU backend hands sums and extrema of floats, and what is computed entry by entry before them, to a library
(`__ynn_fusion`, jaxlib 0.10.2 to 0.12). That walks down one column after the other in two cases. What lies behind the
axis, the row, has more than 64 KiB: 0.8 to 1.6 ns per byte, where a loop over the rows takes 0.05 to 0.2
(`jnp.mean(images, 0)` of 50 x 224 x 224 x 3 takes 40 ms, and 2.6). Or it is a sum of products of which a factor repeats
along other axes: `jnp.sum(w[:, None, None] * x, 0)` of 64 x 128 x 256 takes 28 ms, and 0.8. Which ones are slow was
found by trying all axes of some twenty shapes, from one side of the bound to the other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import bind
from ..joins import joined_axis
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record

# Each with what joins two rows, and what it begins with.
REDUCERS: dict[str, tuple[Any, float]] = {
    "reduce_sum": (lax.add, 0.0),
    "reduce_max": (lax.max, -math.inf),
    "reduce_min": (lax.min, math.inf),
}
# Of what is added up: half precision is in float32, and its extrema, which are not, are faster on one core as they are.
TYPES = ("float32", "float64")
# Wider rows are slow whatever is summed (16,384 numbers of float32 take 107 ps per byte, 16,400 take 700).
WIDE_BYTES = 1 << 16
# Of what repeats: below, a loop is no faster.
LEAST_ENTRIES = 16_384
LEAST_ROW = 64
# Above, adding up one row after the other rounds more than a library does.
MOST_ROWS = 4096
# A chain of operations that is computed in each step.
LONGEST_CHAIN = 12
# Rows of one step, so that the total is read and written once for so many: 2 to 16 were tried, from 4 on alike.
ROWS_PER_STEP = 4


@record
class SumOfRows:
    """A sum or extremum over `axes` of the last of `chain`, equations that nobody else reads.

    Attributes:
        place: of the reduction.
        rows: how many are joined.
        chain: the places of what is computed of each row, in order.
        is_wide: whether it is slow for the width of its rows, or else for a factor that repeats.
    """

    place: int
    axes: tuple[int, ...]
    rows: int
    chain: tuple[int, ...]
    is_wide: bool


def sums_of_rows(level: Level) -> Iterator[SumOfRows]:
    """The reductions of a level that XLA is slow at."""
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name not in REDUCERS or not is_var(eqn.invars[0]) or eqn.invars[0].aval.dtype not in TYPES:
            continue
        x, axes = eqn.invars[0], tuple(sorted(eqn.params["axes"]))
        rows = math.prod(x.aval.shape[d] for d in axes)
        if not axes or not 1 < rows <= MOST_ROWS:
            continue
        is_wide = math.prod(x.aval.shape[max(axes) + 1 :]) * x.aval.dtype.itemsize > WIDE_BYTES
        product = None if is_wide else _weighted(level, eqn)
        if is_wide or product is not None:
            chain = _chain(level, place)
            if (is_wide or product in chain) and not _are_joined(level, (place, *chain), axes):
                yield SumOfRows(place, axes, rows, chain, is_wide)


def _are_joined(level: Level, places: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether single rows are put together for a reduction alone: XLA makes one kernel of these, with no array."""
    for x in (x for k in places for x in level.eqns[k].invars if is_var(x)):
        maker = level.maker(x)
        if maker is not None and joined_axis(maker) in axes and all(k in places for k in level.readers(x)):
            return True
    return False


def _weighted(level: Level, eqn: JaxprEqn) -> int | None:
    """The place of the product that a sum is of, if a factor of it repeats so that the sum is slow."""
    (x,), axes = eqn.invars, eqn.params["axes"]
    shape = x.aval.shape
    place = level.made_by.get(x) if is_var(x) else None
    while place is not None and level.eqns[place].primitive.name == "convert_element_type":
        place = level.made_by.get(level.eqns[place].invars[0])  # type: ignore[arg-type]
    if eqn.primitive.name != "reduce_sum" or len(axes) != 1 or place is None:
        return None
    if x.aval.size < LEAST_ENTRIES or x.aval.size // shape[axes[0]] < LEAST_ROW:
        return None
    maker = level.eqns[place]
    if maker.primitive.name != "mul":
        return None
    repeats = tuple(missing(level, maker))
    if len(repeats) == 2 and all(m and axes[0] not in m for m in repeats):
        return None  # a product of two matrices, which XLA makes as one: a loop took 1.3 to 3.4 times as long
    return place if any(_is_slow(shape, axes[0], m) for m in repeats) else None


def missing(level: Level, eqn: JaxprEqn) -> Iterator[frozenset[int]]:
    """For each operand of a product, the dimensions along which it repeats."""
    shape = eqn.outvars[0].aval.shape
    for x in eqn.invars:
        if not x.aval.shape:
            continue
        missing = {d for d, size in enumerate(x.aval.shape) if size < shape[d]}
        maker = _broadcast(level, x)
        if maker is not None:
            source, at = maker.invars[0].aval.shape, maker.params["broadcast_dimensions"]
            kept = {d for d, size in zip(at, source, strict=True) if size == shape[d]}
            missing |= {d for d, size in enumerate(shape) if size > 1 and d not in kept}
        yield frozenset(missing)


def _broadcast(level: Level, x: Atom) -> JaxprEqn | None:
    """The equation that makes `x` by repeating a value."""
    maker = level.maker(x)
    return maker if maker is not None and maker.primitive.name == "broadcast_in_dim" else None


def _is_slow(shape: Sequence[int], axis: int, missing: frozenset[int]) -> bool:
    """Whether a factor that repeats along `missing` makes a sum over `axis` slow."""
    last = max(d for d, size in enumerate(shape) if size > 1)
    between = [d for d in missing if d != last]
    return axis != last and axis not in missing and any(last not in missing or d > axis for d in between)


def _chain(level: Level, place: int) -> tuple[int, ...]:
    """The operations entry by entry of which a sum is made, if nobody else reads what they make."""
    found: list[int] = []
    inside = {place}
    waiting = [level.eqns[place].invars[0]]
    shape = waiting[0].aval.shape
    while waiting:
        v = waiting.pop()
        maker = level.made_by.get(v) if is_var(v) else None
        if maker is None or maker in inside or len(found) == LONGEST_CHAIN:
            continue
        eqn = level.eqns[maker]
        if eqn.primitive.name not in ELEMENTWISE or len(eqn.outvars) > 1 or v.aval.shape != shape or eqn.effects:
            continue
        if all(k in inside for k in level.readers(eqn.outvars[0])):
            inside.add(maker)
            found.append(maker)
            waiting += eqn.invars
    return tuple(sorted(found))


def in_rows(level: Level, one: SumOfRows) -> Edit:
    """A loop in place of a reduction and its chain."""
    eqn = level.eqns[one.place]
    made = {level.eqns[k].outvars[0] for k in one.chain}
    read = [x for k in one.chain for x in level.eqns[k].invars if is_var(x) and x not in made]
    if not one.chain:
        read += [x for x in eqn.invars if is_var(x)]
    factors = {x: _factor(level, x) for x in dict.fromkeys(read)}
    builder = Builder(eqn)
    # Few rows make no loop, and XLA would compute again what others read: of 2 x 256 x 8 x 128 masks of experts that
    # took 2.4 ms for each sum, and a loop that reads them 0.3.
    shared = any(_is_shared(level, x, factor) for x, factor in factors.items())
    unroll = 1 if shared and one.rows <= ROWS_PER_STEP else min(one.rows, ROWS_PER_STEP)
    run = partial(_joined, level=level, one=one, factors=factors, unroll=unroll)
    (result,) = builder.call(run, *(factor.source for factor in factors.values()))
    gone = frozenset((one.place, *one.chain))
    return Edit(one.place, gone, builder.eqns, {eqn.outvars[0]: result}, gone)


@record
class Factor:
    """What a chain reads: `source`, whose dimensions are those `at` of the product; it repeats along all others.

    The loop reads the source as it is: with dimensions of one entry XLA gives it another layout, and stores it again.
    """

    source: Atom
    at: tuple[int, ...]

    def row(self, x: Any, starts: Mapping[int, Any], row: tuple[int, ...]) -> Any:
        """The row of `x`, the source's value, at `starts` of its axes, in a shape that broadcasts to `row`."""
        sliced = tuple(1 if d in starts else size for d, size in zip(self.at, x.shape, strict=True))
        if sliced != x.shape:
            at = [
                starts[d] if d in starts and size > 1 else np.int32(0) for d, size in zip(self.at, x.shape, strict=True)
            ]
            x = lax.dynamic_slice(x, at, sliced, allow_negative_indices=False)
        return lax.broadcast_in_dim(x, row, self.at)


def _is_shared(level: Level, x: Var, factor: Factor) -> bool:
    """Whether a chain reads what is computed, and what others read too, else it were in the chain."""
    return factor.source is x and level.maker(x) is not None


def _factor(level: Level, x: Var) -> Factor:
    maker = _broadcast(level, x)
    if maker is None:
        return Factor(x, tuple(range(x.aval.ndim)))
    return Factor(maker.invars[0], tuple(map(int, maker.params["broadcast_dimensions"])))


def _joined(*values: Any, level: Level, one: SumOfRows, factors: Mapping[Var, Factor], unroll: int) -> Any:
    eqn = level.eqns[one.place]
    join, start = REDUCERS[eqn.primitive.name]
    source = eqn.invars[0]
    assert is_var(source), "a number has no rows"
    shape = source.aval.shape
    row = tuple(1 if d in one.axes else size for d, size in enumerate(shape))

    def step(carry: Any, _: None) -> Any:
        k, total = carry
        first, *others = one.axes
        starts, left = {}, k
        for d in reversed(others):
            starts[d], left = left % shape[d], left // shape[d]
        starts[first] = left
        rows = zip(factors.items(), values, strict=True)
        known = {v: factor.row(x, starts, row) for (v, factor), x in rows}
        for place in one.chain:
            made = level.eqns[place]
            operands = [x.val if isinstance(x, Literal) else known[x] for x in made.invars]
            (known[made.outvars[0]],) = bind(made, operands, made.params)
        return (k + np.int32(1), join(total, lax.squeeze(known[source], one.axes))), None

    begin = jnp.zeros((), "int32"), jnp.full(eqn.outvars[0].aval.shape, start, source.aval.dtype)
    (_, total), _ = lax.scan(step, begin, None, length=one.rows, unroll=unroll)
    return total
