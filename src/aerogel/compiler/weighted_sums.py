"""Sums of products over an axis that is not the last, of which a factor repeats along others: row by row.

XLA's CPU backend hands such a sum of float32 to a library as a product of matrices (`__ynn_fusion`, jaxlib 0.10.2 to
0.12), which reads it entry by entry: `jnp.sum(w[:, None, None] * x, 0)` of 64 x 128 x 256 numbers takes 28 ms, and
0.8 ms as a loop that adds up its 64 rows. Which ones are slow was found by trying all axes of five shapes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from .axes.elementwise import NAMES as ELEMENTWISE
from .axes.rebind import bind
from .level import Edit, Level
from .program import Builder, is_var

# Below, a loop is no faster; above, adding up one row after the other rounds more than a library does.
LEAST_ENTRIES = 16_384
LEAST_ROW = 64
MOST_ROWS = 4096
# A chain of operations that is computed in each step.
LONGEST_CHAIN = 12


@dataclass(frozen=True)
class WeightedSum:
    """A sum over `axis` of the last of `chain`, equations that nobody else reads.

    Attributes:
        place: of the sum.
        rows: how many are added up.
        chain: the places of what is computed of each row, in order.
    """

    place: int
    axis: int
    rows: int
    chain: tuple[int, ...]


def weighted_sums(level: Level) -> Iterator[WeightedSum]:
    """The sums of a level that XLA is slow at."""
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name != "reduce_sum" or len(eqn.params["axes"]) != 1:
            continue
        (x,), (axis,) = eqn.invars, eqn.params["axes"]
        shape = x.aval.shape
        if (
            not is_var(x)
            or x.aval.dtype != "float32"
            or x.aval.size < LEAST_ENTRIES
            or not 1 < shape[axis] <= MOST_ROWS
        ):
            continue
        maker = level.made_by.get(x)
        if maker is None or level.eqns[maker].primitive.name != "mul" or x.aval.size // shape[axis] < LEAST_ROW:
            continue
        if any(_is_slow(shape, axis, missing) for missing in _missing(level, maker)):
            chain = _chain(level, place)
            if maker in chain:
                yield WeightedSum(place, axis, shape[axis], chain)


def _missing(level: Level, place: int) -> Iterator[frozenset[int]]:
    """For each operand of a product, the dimensions along which it repeats."""
    eqn = level.eqns[place]
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


def in_rows(level: Level, one: WeightedSum) -> Edit:
    """A loop in place of a sum and its chain."""
    eqn = level.eqns[one.place]
    made = {level.eqns[k].outvars[0] for k in one.chain}
    read = dict.fromkeys(x for k in one.chain for x in level.eqns[k].invars if is_var(x) and x not in made)
    factors = {x: _factor(level, x) for x in read}
    builder = Builder(eqn)
    run = partial(_summed, level=level, one=one, factors=factors)
    (result,) = builder.call(run, *(factor.source for factor in factors.values()))
    gone = frozenset((one.place, *one.chain))
    return Edit(one.place, gone, builder.eqns, {eqn.outvars[0]: result}, gone)


@dataclass(frozen=True)
class Factor:
    """What a chain reads: `source`, whose dimensions are those `at` of the product; it repeats along all others.

    The loop reads the source as it is: with dimensions of one entry XLA gives it another layout, and stores it again.
    """

    source: Atom
    at: tuple[int, ...]

    def row(self, x: Any, k: Any, axis: int, row: tuple[int, ...]) -> Any:
        """The `k`-th row of `x`, the source's value, in a shape that broadcasts to `row`."""
        sliced = tuple(1 if d == axis else size for d, size in zip(self.at, x.shape, strict=True))
        if sliced != x.shape:
            starts = [k if d == axis else np.int32(0) for d in self.at]
            x = lax.dynamic_slice(x, starts, sliced, allow_negative_indices=False)
        return lax.broadcast_in_dim(x, row, self.at)


def _factor(level: Level, x: Var) -> Factor:
    maker = _broadcast(level, x)
    if maker is None:
        return Factor(x, tuple(range(x.aval.ndim)))
    return Factor(maker.invars[0], tuple(map(int, maker.params["broadcast_dimensions"])))


def _summed(*values: Any, level: Level, one: WeightedSum, factors: Mapping[Var, Factor]) -> Any:
    eqn = level.eqns[one.place]
    source = eqn.invars[0]
    assert is_var(source), "a product was found that makes it"
    row = tuple(1 if d == one.axis else size for d, size in enumerate(source.aval.shape))

    def step(carry: Any, _: None) -> Any:
        k, total = carry
        rows = zip(factors.items(), values, strict=True)
        known = {v: factor.row(x, k, one.axis, row) for (v, factor), x in rows}
        for place in one.chain:
            made = level.eqns[place]
            operands = [x.val if isinstance(x, Literal) else known[x] for x in made.invars]
            (known[made.outvars[0]],) = bind(made, operands, made.params)
        return (k + np.int32(1), total + lax.squeeze(known[source], (one.axis,))), None

    start = jnp.zeros((), "int32"), jnp.zeros(eqn.outvars[0].aval.shape, "float32")
    (_, total), _ = lax.scan(step, start, None, length=one.rows)
    return total
