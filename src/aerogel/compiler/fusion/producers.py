"""What a loop reads step by step, and whether it can be made in the step instead of beforehand."""

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes import Axis, Mapped, along_output
from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import nbytes
from ..cost.sharing import SHARED_BYTES
from ..known.spread import stays_local
from ..level import Level
from ..loop import Loop, LoopBuilder
from ..program import is_var
from .site_seconds import UNFUSED
from .window import Window, in_window, position

# Made again in every step rather than read from memory: one or two machine instructions an element.
CHEAP = frozenset(
    "add sub mul neg abs max min and or not eq ne lt le gt ge select_n sign convert_element_type broadcast_in_dim "
    "reshape squeeze expand_dims iota transpose integer_pow square copy stop_gradient add_any is_finite floor div exp "
    "logistic".split()
)


# Made in the steps instead of beforehand, where nobody else needs the whole.
MOVES = frozenset("scatter-add scatter gather reduce_sum reduce_max reduce_min reduce_and reduce_or log".split())
# Fused by XLA into what reads them, though some are too dear to make again.
FUSED = CHEAP | frozenset(ELEMENTWISE) | frozenset({"slice", "pad", "rev"})
# Computed again in the steps, one of these takes as long as so many elements of its size to move: a loop over the least
# of 1 and ratios that its loss reads, too, took 1.15 to 1.26 of the time in float64 with the ratios made in its steps,
# 0.85 to 1.03 without.
EXPONENTIALS, EXPONENTIAL_ELEMENTS, AMPLIFIED = ("exp", "logistic"), 2.0, 1.5
# XLA's CPU backend counts the whole of a table that several rows are gathered from as read, and shares the kernel among
# threads for that; starting these takes as long as so many elements to move. (A step of 16 rows of 64, of 5,000: 9 us
# instead of 6.)
SHARED_ELEMENTS = 25_000
MAX_DEPTH = 16
SMALLEST_INPUT = 4096
SMALLEST_STEP = 64


Reads = dict[tuple[Var, Axis], float]  # elements moved to read values by blocks along an axis


class Producers:
    """Gives a loop under construction the entries of values from outside, one step at a time.

    A value that is only a broadcast, a counter, or cheap arithmetic on such, is computed in the step: it need not
    exist as a whole.

    Attributes:
        shares: whether kernels of the steps may be shared among threads, as on a CPU.
    """

    def __init__(self, level: Level, new: LoopBuilder, place: int, moved: Collection[int] = (), shares: bool = False):
        self.place, self.shares = place, shares
        self.inside = {place, *moved}
        self._only_here: dict[Var, bool] = {}
        self._beforehand: dict[Var, float] = {}
        self._reads: dict[tuple[Var, Axis, bool], Reads | None] = {}
        self.made: set[int] = set()  # the places of the equations that the steps run themselves
        self.level = level
        self.new = new
        self._blocks: dict[tuple[Var, Axis, Window], Atom] = {}

    def step(self, x: Var) -> Atom:
        """The entry of a value with time in front."""
        window = Window(0, 1, self.new.length)
        if _matters(x) and self.can_make(x, Axis(0)):
            (step,) = self.new.body.call(lambda b: lax.squeeze(b, [0]), self.block(x, Axis(0), window))
            return step
        return self.new.x(x)

    def block(self, x: Atom, axis: Axis | None, window: Window) -> Atom:
        """The block of one step of `x`, which has time at `axis`; the whole of it where `axis` is None."""
        if isinstance(x, Literal):
            return x
        if axis is None:
            return self.new.const(x)
        key = (x, axis, window)
        if key not in self._blocks:
            whole = window.is_all(self.new.length)
            made = self._make(x, axis, window) if self.can_make(x, axis, whole) else None
            self._blocks[key] = self._read(x, axis, window) if made is None else made
        return self._blocks[key]

    def turned(self, x: Var, axis: Axis) -> list[Var]:
        """What is written in the order of the steps before the loop, for these to read or make their block of `x`."""
        found = self._answer(x, axis) if self.can_make(x, axis) else None
        if found is None:
            return [] if axis == Axis(0) or is_view(x.aval.shape, axis) else [x]
        eqn, answer = found
        pairs = zip(eqn.invars, answer.ins, strict=True)
        return [v for y, place in pairs if place is not None and is_var(y) for v in self.turned(y, place)]

    def can_make(self, x: Var, axis: Axis, whole: bool = True) -> bool:
        """Whether a step can make its block of `x` by moving less memory than writing `x` beforehand and reading it."""
        found = self._answer(x, axis)
        if found is not None and not whole and found[0].primitive.name == "pad":
            return False
        cost = self._cost_to_make(x, axis, whole)
        return cost is not None and cost <= self._cost_as_it_is(x)

    def _cost_as_it_is(self, x: Var) -> float:
        """Elements moved when the loop reads `x`: twice those of `x` if it exists for the loop only."""
        index = self.level.made_by.get(x)
        if index is None:
            return x.aval.size
        if self.level.eqns[index].primitive.name == "reshape":
            viewed = self.level.eqns[index].invars[0]
            return self._cost_as_it_is(viewed) if is_var(viewed) else 0.0
        if self.level.eqns[index].primitive.name not in FUSED:
            return self._cost_beforehand(x) or x.aval.size
        read_elsewhere = any(k == -1 or self._is_unfused(k) for k in self.level.readers(x) if k not in self.inside)
        return x.aval.size if read_elsewhere else 2 * x.aval.size

    def _cost_beforehand(self, x: Var) -> float:
        """Elements moved for what the steps could make instead: `x`, and what is written as a whole to make it."""
        if x not in self._beforehand:
            self._beforehand[x] = 0.0
            index = self.level.made_by.get(x)
            name = "" if index is None else self.level.eqns[index].primitive.name
            moves = name in MOVES and self.is_read_only_here(x)
            if index is not None and (moves or name in FUSED):
                inputs = sum(self._cost_beforehand(v) for v in self.level.eqns[index].invars if is_var(v))
                self._beforehand[x] = inputs + (2 * x.aval.size if moves else 0)
        return self._beforehand[x]

    def is_read_only_here(self, x: Var) -> bool:
        """Whether all that is made of a value ends in the loop: then making it in the steps is no work done twice."""
        if x not in self._only_here:
            self._only_here[x] = all(
                k in self.inside or (k != -1 and all(self.is_read_only_here(v) for v in self.level.eqns[k].outvars))
                for k in (self.level.readers(x) or [-1])
            )
        return self._only_here[x]

    def _cost_to_read(self, x: Var, axis: Axis, whole: bool) -> float:
        """As it is, a little dearer for what would exist for the loop only: of two equal ways the plain one.

        What `_read` puts in front of the loop exists for the loop only, too.
        """
        if not whole and axis == Axis(0) and (seen := self._seen(x)[0]) is not x:
            return self._cost_as_it_is(seen) * x.aval.size / seen.aval.size
        cost = self._cost_as_it_is(x)
        if axis != Axis(0):
            return 1.01 * (cost if is_view(x.aval.shape, axis) else 2 * x.aval.size)
        return 1.01 * cost if cost > x.aval.size else cost

    def _is_unfused(self, index: int) -> bool:
        return self.level.eqns[index].primitive.name in UNFUSED

    def _cost_to_make(self, x: Var, axis: Axis, whole: bool) -> float | None:
        """Elements moved when the steps make `x` themselves; None where they cannot."""
        reads = self._reads_to_make(x, axis, whole, 0)
        return None if reads is None else sum(reads.values())

    def _reads_to_make(self, x: Var, axis: Axis, whole: bool, depth: int) -> Reads | None:
        """What the steps read to make `x`, its inputs made too where that is cheaper; each value is read once.

        `whole` says whether every step has a block of `x`.
        """
        key = (x, axis, whole)
        if key not in self._reads:
            found = self._answer(x, axis) if depth <= MAX_DEPTH else None
            self._reads[key] = None if found is None else self._reads_of(*found, whole, depth)
        return self._reads[key]

    def _reads_of(self, eqn: JaxprEqn, answer: Mapped, whole: bool, depth: int) -> Reads:
        reads: Reads = {}
        whole = whole and eqn.primitive.name != "pad"
        for x, place in zip(eqn.invars, answer.ins, strict=True):
            if place is None or isinstance(x, Literal):
                continue
            cost = self._cost_to_read(x, place, whole)
            made = self._reads_to_make(x, place, whole, depth + 1)
            reads |= {(x, place): cost} if made is None or cost < sum(made.values()) else made
        return reads | self._work(eqn, answer, sum(reads.values()))

    def _work(self, eqn: JaxprEqn, answer: Mapped, read: float) -> Reads:
        """What it takes to compute an exponential twice, in the steps and for others, as elements moved.

        What is much larger than what it is made of is made in the steps all the same: that is memory. And what it takes
        to share a gather among threads.
        """
        (out,), (place,) = eqn.outvars, answer.outs
        steps = self.new.length
        if eqn.primitive.name == "gather" and place is not None and self.shares and answer.ins[0] is None:
            return {(out, place): float(SHARED_ELEMENTS * steps)} if _is_shared(eqn, steps) else {}
        if eqn.primitive.name not in EXPONENTIALS or place is None or self.is_read_only_here(out):
            return {}
        return {(out, place): EXPONENTIAL_ELEMENTS * out.aval.size} if AMPLIFIED * read >= out.aval.size else {}

    def _answer(self, x: Atom, axis: Axis) -> tuple[JaxprEqn, Mapped] | None:
        index = None if isinstance(x, Literal) else self.level.made_by.get(x)
        if index is None or isinstance(x, Literal):
            return None
        eqn = self.level.eqns[index]
        if eqn.ctx.compute_type != self.level.eqns[self.place].ctx.compute_type:  # `compute_on` puts it elsewhere
            return None
        cheap = eqn.primitive.name in CHEAP or eqn.primitive.name == "pad" or is_outer_product(eqn)
        if not cheap and (eqn.primitive.name not in MOVES or not self.is_read_only_here(x)):
            return None
        if eqn.primitive.name == "pad":
            answer = _padded(eqn, axis)
            return None if answer is None else (eqn, answer)
        answer = along_output(eqn, {0: axis}, x.aval.shape[axis.dim] // (axis.outer * axis.inner))
        if not isinstance(answer, Mapped):
            return None
        if self.level.over_devices and not _stays(eqn, answer.ins):
            return None
        return eqn, answer

    def _make(self, x: Var, axis: Axis, window: Window) -> Atom:
        found = self._answer(x, axis)
        assert found is not None
        eqn, answer = found
        self.made.add(self.level.made_by[x])
        inner = _padded_window(eqn, axis) if eqn.primitive.name == "pad" else window
        ins = [self.block(v, place, inner) for v, place in zip(eqn.invars, answer.ins, strict=True)]
        index = [self.new.index()] if answer.uses_start else []

        def one_step(*values: Any) -> list[Any]:
            if not answer.uses_start:
                return list(answer.block(np.int32(0), 1, *values))
            return list(answer.block(position(values[0], window, self.new.length), 1, *values[1:]))

        like, self.new.body.like = self.new.body.like, eqn
        (block,) = self.new.body.call(one_step, *index, *ins)
        self.new.body.like = like
        return block

    def _read(self, x: Var, axis: Axis, window: Window) -> Atom:
        """The block as an input of the loop, or, for some steps only, read from the whole at the step's place."""
        length = self.new.length
        if window.is_all(length) and axis == Axis(0):
            # the value as it is: a second shape of it would be a second copy beside the loop
            (block,) = self.new.body.call(lambda v: lax.expand_dims(v, [0]), self.new.x(x))
            return block
        if window.is_all(length):
            (rows,) = self.new.before.call(lambda v: blocks_in_front(v, axis, length), x)
            assert is_var(rows)
            return self.new.x(rows)
        seen, first, stride, through = self._seen(x) if axis == Axis(0) else (x, 0, 1, [])
        self.made.update(through)  # what they show must not go in the same round
        if seen is x:
            (rows,) = self.new.before.call(lambda v: blocks_in_front(v, axis, window.count), x)
        else:
            rows = seen  # its other rows do no harm: no second copy of those that are read
        whole, block = self.new.const(rows), axis.resize(x.aval.shape, 1)

        def read(rows: Any, t: Any) -> Any:
            place = position(t, window, length)
            if seen is not x:
                place = place * np.int32(stride) + np.int32(first)
            return lax.reshape(lax.dynamic_index_in_dim(rows, place, 0, keepdims=False), block)

        (step,) = self.new.body.call(read, whole, self.new.index())
        return step

    def _seen(self, x: Var) -> tuple[Var, int, int, list[int]]:
        """The value of which `x` shows rows, the first of these, the rows from one to the next, and what shows them."""
        first, stride, through = 0, 1, list[int]()
        while (place := self.level.made_by.get(x)) is not None:
            eqn = self.level.eqns[place]
            operand, name = eqn.invars[0], eqn.primitive.name
            if not is_var(operand) or name not in ("reshape", "slice") or not operand.aval.shape:
                break
            shape = operand.aval.shape
            if name == "reshape" and shape[0] != x.aval.shape[0]:
                break
            if name == "slice":
                starts, steps = eqn.params["start_indices"], eqn.params["strides"] or (1,) * len(shape)
                if shape[1:] != x.aval.shape[1:]:
                    break
                first, stride = starts[0] + first * steps[0], stride * steps[0]
            x = operand
            through.append(place)
        return x, first, stride, through


def _is_shared(gather: JaxprEqn, steps: int) -> bool:
    """Whether XLA shares what one of so many steps gathers: of the table it counts all, but for a single row."""
    table, indices = (x.aval for x in gather.invars)
    return prod(indices.shape[:-1]) > steps and nbytes(table) >= 2 * SHARED_BYTES


def is_outer_product(eqn: JaxprEqn) -> bool:
    """Whether a `dot_general` only multiplies: nothing is summed."""
    if eqn.primitive.name != "dot_general":
        return False
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return all(eqn.invars[0].aval.shape[d] == 1 for d in contracted)


def _padded(eqn: JaxprEqn, axis: Axis) -> Mapped | None:
    """A `pad` along time: each step takes its entry of the operand, or the padding value.

    The gradient of a slice over time is one: a stacked array of zeros but for the steps that were read.
    """
    others = any(any(p) for d, p in enumerate(eqn.params["padding_config"]) if d != axis.dim)
    window = _padded_window(eqn, axis)
    if not axis.is_plain or others or window.start < 0 or window.count == 0:
        return None
    total = eqn.outvars[0].aval.shape[axis.dim]
    if window.start + (window.count - 1) * window.stride >= total:
        return None

    def block(start: Any, size: int, entry: Any, value: Any) -> list[Any]:
        return [lax.select(lax.broadcast(in_window(start, window), entry.shape), entry, lax.full_like(entry, value))]

    return Mapped((axis, None), (axis,), block, uses_start=True)


def _padded_window(eqn: JaxprEqn, axis: Axis) -> Window:
    low, _, interior = (int(n) for n in eqn.params["padding_config"][axis.dim])
    return Window(low, interior + 1, eqn.invars[0].aval.shape[axis.dim])


def _stays(eqn: JaxprEqn, places: Sequence[Axis | None]) -> bool:
    """Whether steps that make their entries move no more between devices than steps that are given these.

    Entries of values that are spread along time have to be fetched: of one operand, then, and no larger ones.
    """
    read = sum(nbytes(x.aval) for x, place in zip(eqn.invars, places, strict=True) if place is not None)
    return read <= nbytes(eqn.outvars[0].aval) and stays_local(eqn, places[0] if places else None)


def makeable_inputs(level: Level, index: int, loop: Loop, shares: bool = False) -> list[Var]:
    """The inputs of a loop, large enough to matter, that its steps could make from less than they read.

    `shares` as for `Producers`.
    """
    if not any(_matters(x) for x in loop.xs):
        return []
    found = Producers(level, LoopBuilder(loop.eqn, loop.length, loop.reverse), index, shares=shares)
    xs = [x for x in loop.xs if is_var(x) and _matters(x) and not _is_view(level, x)]
    return [x for x in xs if found.can_make(x, Axis(0))]


def _is_view(level: Level, x: Var) -> bool:
    """Whether a value is one that exists, cut into other steps: those would read it in that shape all the same."""
    while (place := level.made_by.get(x)) is not None and level.eqns[place].primitive.name == "reshape":
        (operand,) = level.eqns[place].invars
        if not is_var(operand) or operand.aval.shape[:1] == x.aval.shape[:1]:
            return False
        maker = level.eqns[level.made_by[operand]] if operand in level.made_by else None
        if maker is None or (maker.primitive.name in UNFUSED and not is_outer_product(maker)):
            return True
        x = operand
    return False


def _matters(x: Atom) -> bool:
    """Whether a stacked value is more than a few numbers a step: those are cheaper to read than to make."""
    return is_var(x) and x.aval.size >= SMALLEST_INPUT and x.aval.size >= SMALLEST_STEP * max(1, x.aval.shape[0])


def is_view(shape: Sequence[int], axis: Axis) -> bool:
    """Whether `blocks_in_front` only reshapes."""
    return axis.outer == 1 and all(n == 1 for n in shape[: axis.dim])


def blocks_in_front(x: Any, axis: Axis, length: int) -> Any:
    """`x` as blocks of one index each on a new leading dimension: the inverse of `stack_blocks`."""
    before, after = x.shape[: axis.dim], x.shape[axis.dim + 1 :]
    block = axis.resize(x.shape, 1)
    if is_view(x.shape, axis):
        return lax.reshape(x, (length, *block))
    split = lax.reshape(x, (*before, axis.outer, length, axis.inner, *after))
    place = len(before) + 1
    order = (place, *range(place), *range(place + 1, split.ndim))
    return lax.reshape(lax.transpose(split, order), (length, *block))
