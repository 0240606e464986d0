"""Sums of products that a loop adds up: one product for each block of a few steps.

The gradient of a recurrent layer's weights adds a product of the step's rows to a whole matrix in every step, which is
read and written for it. One product of the rows of all steps after the loop is faster, but its factors, stacked, are
half of what such a gradient keeps. Of a few steps they stay in the cache, and the product is nearly as good.
"""

from typing import Any

from jax import lax

from aerogel._jax import Atom, DropVar, Var

from ..cost import Machine, equation_seconds, nbytes
from ..hoisting.hoist_plan import LEAST_SECONDS, LEAST_SHARE
from ..hoisting.sink import LONGEST_CONTRACTION, Sum, contracted, find_sums, new_stacks, seconds_saved, sink
from ..level import Edit
from ..loop import Loop, LoopBuilder
from ..program import Builder
from ..record import record
from ..residuals.segments import carried_through

# Of an LSTM's gradient (100 steps, batch 32, 128 units) blocks of 5, 10, 20 and 25 steps took 0.85, 0.81, 0.81 and 1.00
# of the time, where these took 0.6, 1.4, 3.1 and 3.9 MB; of a GRU's 0.77, 0.75, 0.81 for 0.8, 1.8, 3.9 MB.
LARGEST = 2 << 20
LONGEST = 16
# A step's product of more rows, or a sum that stays in the cache, is good as it is: a GRU of 96 units took 0.97 to 1.1
# of the time with batch 64, an LSTM of 96 units 0.97 to 1.03 with batch 32.
MOST_TERMS = 32
SMALLEST_SUM = 192 << 10


@record
class Blocks:
    """Some sums of a loop, and how they would be made.

    Attributes:
        sums: those that blocks would make.
        size: steps in a block; 0 if there is none.
        bytes_added: what a block takes.
        seconds: what it saves, as predicted.
        refusal: why the sums stay as they are; None if they do not.
    """

    sums: tuple[Sum, ...]
    size: int
    bytes_added: int
    seconds: float
    refusal: str | None


def blocks_of(loop: Loop, machine: Machine) -> Blocks | None:
    """How a loop's sums of products of many terms could be made in blocks of steps; None if it has none."""
    sums = tuple(one for one in find_sums(loop) if _is_long(one))
    if not sums:
        return None
    if loop.unroll != 1 or any(eqn.primitive.name in ("scan", "while", "cond") for eqn in loop.body.eqns):
        return Blocks(sums, 0, 0, 0.0, "its steps hold a loop or a branch, or are unrolled")
    stacks = {x for one in sums for x in new_stacks(loop, one)}
    step_bytes = sum(nbytes(x.aval) for x in (*stacks, *loop.body_xs))
    size = _size(loop, LARGEST // max(1, step_bytes))
    if not size:
        return Blocks(sums, 0, 0, 0.0, "the factors of few steps do not stay in the cache")
    if loop.length % size and sum(nbytes(y.aval) for y in loop.ys) > LARGEST:
        return Blocks(sums, 0, 0, 0.0, "no few steps divide their number, and what they stack would be joined anew")
    count = loop.length // size
    block, _ = loop.run(loop.eqn.invars, size, loop.ys)
    gains = {one: count * seconds_saved(Loop(block), one, machine) for one in sums}
    paying = tuple(one for one in sums if gains[one] > 0)
    # what the loop reads step by step is copied, a block at a time
    copies = 2 * loop.length * sum(nbytes(x.aval) for x in loop.body_xs) / machine.cache_bytes_per_second
    if loop.length % size:
        copies += 2 * sum(nbytes(y.aval) for y in loop.ys) / machine.bytes_per_second
    saved = sum(gains[one] for one in paying) - copies
    least = max(LEAST_SECONDS, LEAST_SHARE * equation_seconds(loop.eqn, machine))
    refusal = None if saved >= least else "a product for a few steps at once would save too little"
    return Blocks(paying or sums, size, size * step_bytes, saved, refusal)


def _size(loop: Loop, most: int) -> int:
    """Steps in a block, which divide the number of steps if any near to `most` do; 0 if that is less than two."""
    most = min(most, LONGEST, loop.length // 2)
    near = range(max(2, (most + 1) // 2), most + 1)
    return min(reversed(near), key=lambda k: (loop.length % k > 0, loop.length % k), default=0)


def _is_long(one: Sum) -> bool:
    """Whether a sum is large, and of so many products in each step that it does not leave the loop altogether."""
    if one.eqn is None or one.eqn.primitive.name != "dot_general" or nbytes(one.add.outvars[0].aval) < SMALLEST_SUM:
        return False
    return LONGEST_CONTRACTION <= contracted(one) <= MOST_TERMS


def in_blocks(loop: Loop, found: Blocks, place: int) -> Edit:
    """The loop at `place` as one over blocks, each a loop over its steps and the products of what these stack.

    Steps that fill no block run before it, as they are.
    """
    size, count = found.size, loop.length // found.size
    head = loop.length - size * count
    out = Builder(loop.eqn)
    carry: list[Atom] = list(loop.init)
    before: dict[Var, Atom] = {}
    if head:
        start = loop.length - head if loop.reverse else 0
        xs = [out.call(lambda v: lax.slice_in_dim(v, start, start + head), x)[0] for x in loop.xs]
        eqn, made = loop.run([*loop.consts, *carry, *xs], head, loop.ys)
        out.eqns.append(eqn)
        carry, before = [made[v] for v in loop.finals], {y: made[y] for y in loop.ys}
    new = LoopBuilder(loop.eqn, count, loop.reverse)
    carried, setters, finals = carried_through(new, loop, carry)
    begin = 0 if loop.reverse else head
    entries = [_entries(new, x, begin, size) for x in loop.xs]
    eqn, made = loop.run([*(new.const(c) for c in loop.consts), *carried, *entries], size, loop.ys)
    block, chosen = Loop(eqn), {(one.carry, one.place) for one in found.sums}
    inner = sink(block, [one for one in find_sums(block) if (one.carry, one.place) in chosen])
    new.body.eqns += inner.eqns
    for set_next, v in zip(setters, loop.finals, strict=True):
        set_next(inner.results.get(made[v], made[v]))
    stacks = {y: new.y(made[y]) for y in loop.ys}
    out.eqns += new.equations()
    results: dict[Var, Atom] = {v: x for v, x in zip(loop.finals, finals, strict=True) if not isinstance(v, DropVar)}
    for y, stack in stacks.items():
        (whole,) = out.call(lambda v: lax.reshape(v, (count * size, *v.shape[2:])), stack)
        if head:
            pieces = [whole, before[y]] if loop.reverse else [before[y], whole]
            (whole,) = out.call(lambda a, b: lax.concatenate([a, b], 0), *pieces)
        results[y] = out.as_weak_as(y, whole)
    here = frozenset((place,))
    return Edit(place, here, out.eqns, results, here)


def _entries(new: LoopBuilder, x: Atom, begin: int, size: int) -> Atom:
    """The entries of one block, inside the loop over blocks: what has one for each step is not copied as a whole."""

    def entries(whole: Any, k: Any) -> Any:
        return lax.dynamic_slice_in_dim(whole, begin + size * k, size)

    return new.body.call(entries, new.const(x), new.index())[0]
