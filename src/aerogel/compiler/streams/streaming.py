"""Loops over the blocks of a stream, in place of its equations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, JaxprEqn, Literal, Var

from ..axes import Axis, Mapped, Reduced, append_block, stack_blocks, take_block
from ..axes.rebind import bind
from ..cost import nbytes
from ..fusion.accumulate import accumulate
from ..fusion.producers import blocks_in_front, is_view
from ..fusion.window import Window
from ..level import Edit
from ..loop import LoopBuilder
from ..program import Builder, copy_equation, is_var
from ..record import record
from .streams import Search, Stream, made_again, needed, results_of
from .unit_batches import without_unit_batches

# A copy of less is no matter. Of an array of points, which will be taken apart, blocks are made beforehand.
LEAST_COPY = 1 << 20
COORDINATES = 32


def stream_loops(stream: Stream, size: int, recomputed: bool) -> Edit:
    """The edit that runs a stream in loops over blocks of `size` indices, and over the rest behind them.

    With `recomputed`, the derivative of a loop computes each block again instead of keeping it.
    """
    return _Streaming(stream, size, recomputed).run()


@dataclass
class _Streaming:
    stream: Stream
    size: int
    recomputed: bool
    results: dict[Var, Atom] = field(default_factory=dict)
    eqns: list[JaxprEqn] = field(default_factory=list)
    found: dict[int, tuple[Var, Atom | None]] = field(default_factory=dict)  # what searches look for, of each block

    def run(self) -> Edit:
        stream = self.stream
        roots = results_of(stream)
        for phase in range(stream.phases):
            if roots[phase]:
                self.eqns += _Phase(self, phase, needed(stream, roots, phase), roots[phase]).equations()
        gone = frozenset(stream.answers)
        return Edit(min(gone), gone, self.eqns, self.results, gone)


@dataclass
class _Phase:
    """One loop, and the rest behind it: blocks that are made in the body have one atom there and one of the rest."""

    whole: _Streaming
    phase: int
    places: Sequence[int]
    roots: set[int]
    blocks: dict[tuple[Atom, Axis], Atom] = field(default_factory=dict)
    rest: dict[tuple[Atom, Axis], Atom] = field(default_factory=dict)
    shared: dict[Var, Atom] = field(default_factory=dict)  # in the body, what it makes again and of what

    def __post_init__(self) -> None:
        stream, size = self.whole.stream, self.whole.size
        self.stream = stream
        self.steps = stream.length // size
        self.covered = self.steps * size
        like = stream.level.eqns[min(self.roots)]
        self.new = LoopBuilder(scan_like(like), self.steps, False)
        index = self.new.index()
        (self.start,) = self.new.body.call(lambda t: t * np.int32(size), index)

    def equations(self) -> list[JaxprEqn]:
        new = self.new
        for place in self.places:
            eqn = self.stream.level.eqns[place]
            answer = self.stream.answers[place]
            for builder in (new.before, new.body, new.after):
                builder.like = eqn
            outs = self._run(place, answer)
            behind = self._run_rest(place, answer) if self.covered < self.stream.length else None
            if isinstance(answer, Reduced):
                self._reduce(place, answer, outs, behind)
            else:
                self._keep(place, eqn, answer, outs, behind)
        loop = new.equation()
        body = ClosedJaxpr(without_unit_batches(loop.params["jaxpr"].jaxpr), ())
        loop = loop.replace(params=loop.params | {"jaxpr": _recomputing(body) if self.whole.recomputed else body})
        return [*new.before.eqns, loop, *new.after.eqns]

    def _run(self, place: int, answer: Mapped | Reduced) -> list[Atom]:
        """What one step makes."""
        eqn, size, reads = self.stream.level.eqns[place], self.whole.size, self._reads(place)
        if place in self.stream.searches:
            search = self.stream.searches[place]
            reads[search.operand] = self._found(self.new.body, search, reads[1 - search.operand], size)
        whole = [k for k, axis in enumerate(answer.ins) if axis is None]
        turned = transposed(eqn, whole) if isinstance(answer, Mapped) else None
        if turned is not None:
            for k, order in turned.orders.items():
                (x,) = self.new.before.call(partial(lax.transpose, permutation=order), self._seen(eqn.invars[k]))
                reads[k] = self.new.const(x)
            return self.new.body.call(turned.run, *reads)
        if not answer.uses_start:
            return self.new.body.call(lambda *values: list(answer.block(np.int32(0), size, *values)), *reads)
        return self.new.body.call(lambda start, *values: list(answer.block(start, size, *values)), self.start, *reads)

    def _run_rest(self, place: int, answer: Mapped | Reduced) -> list[Atom]:
        """The same for what is left behind the last whole block, after the loop."""
        start, size = self.covered, self.stream.length - self.covered
        reads = [self._rest_of(x, axis) for x, axis in self.stream.reads(place)]
        if place in self.stream.searches:
            search = self.stream.searches[place]
            reads[search.operand] = self._found(self.new.after, search, reads[1 - search.operand], size)
        return self.new.after.call(lambda *values: list(answer.block(np.int32(start), size, *values)), *reads)

    def _found(self, builder: Builder, search: Search, block: Atom, size: int) -> Atom:
        """What a block is compared with: its own minimum where that is the minimum of all, else what equals nothing."""
        level, answers = self.stream.level, self.stream.answers
        eqn, answer = level.eqns[search.reduction], answers[search.reduction]
        rows, behind = self.whole.found[search.reduction]
        here, of_all = behind, self._seen(eqn.outvars[0])
        if builder is self.new.body:
            here, of_all = self.new.x(rows), self.new.const(of_all)
        assert here is not None, "there is a rest, as there was in the loop before"

        def run(block: Any, here: Any, of_all: Any) -> Any:
            (own,) = answer.block(np.int32(0), size, block)
            own = lax.select(lax.eq(here, of_all), own, lax.full_like(own, np.nan))
            for place in search.moves:
                moved, move = answers.get(place), level.eqns[place]
                outs = bind(move, [own], move.params) if moved is None else moved.block(np.int32(0), size, own)
                (own,) = outs
            return own

        return builder.call(run, block, here, of_all)[0]

    def _reads(self, place: int) -> list[Atom]:
        return [self._block(x, axis) for x, axis in self.stream.reads(place)]

    def _block(self, x: Atom, axis: Axis | None) -> Atom:
        if isinstance(x, Literal):
            return x
        if axis is None:
            return self._shared(x)
        seen = self._seen(x)
        if (x, axis) not in self.blocks:
            length, steps, covered, size = self.stream.length, self.steps, self.covered, self.whole.size
            if self._would_be_copied(x, axis):
                (self.blocks[x, axis],) = self.new.body.call(
                    lambda v, start: take_block(v, axis, length, start, size), self.new.const(seen), self.start
                )
                return self.blocks[x, axis]
            wide = Axis(axis.dim, axis.outer, axis.inner * size)
            (rows,) = self.new.before.call(
                lambda v: blocks_in_front(take_block(v, axis, length, 0, covered), wide, steps), seen
            )
            assert is_var(rows)
            self.blocks[x, axis] = self.new.x(rows)
        return self.blocks[x, axis]

    def _would_be_copied(self, x: Var, axis: Axis) -> bool:
        """Whether the blocks of something large cannot lie in front, unless all of it is copied: a mask of all pairs.

        What is to be differentiated is copied nevertheless: the derivative of reading a part adds to the whole.
        """
        wide = Axis(axis.dim, axis.outer, axis.inner * self.whole.size)
        in_front = self.covered == self.stream.length and is_view(x.aval.shape, wide)
        large = nbytes(x.aval) >= LEAST_COPY and x.aval.shape[-1] > COORDINATES
        return large and not in_front and not self.whole.recomputed

    def _shared(self, x: Var) -> Atom:
        """What all blocks share: a constant of the loop, or made again in each block."""
        again = made_again(self.stream, x, self.whole.size)
        if not again:
            return self.new.const(self._seen(x))
        if x not in self.shared:
            made = {v for eqn in again for v in eqn.outvars}
            read = (v for eqn in again for v in eqn.invars if is_var(v) and v not in made)
            self.shared.update((v, self.new.const(self._seen(v))) for v in read)
            self.new.body.eqns += [copy_equation(eqn, self.shared) for eqn in again]
        return self.shared[x]

    def _rest_of(self, x: Atom, axis: Axis | None) -> Atom:
        if isinstance(x, Literal):
            return x
        seen = self._seen(x)
        if axis is None:
            return seen
        if (x, axis) not in self.rest:
            length, covered = self.stream.length, self.covered
            (self.rest[x, axis],) = self.new.after.call(
                lambda v: take_block(v, axis, length, covered, length - covered), seen
            )
        return self.rest[x, axis]

    def _seen(self, x: Atom) -> Atom:
        """What stands for a value after the loops before this one."""
        return x if isinstance(x, Literal) else self.whole.results.get(x, x)

    def _reduce(self, place: int, answer: Reduced, parts: Sequence[Atom], behind: list[Atom] | None) -> None:
        eqn = self.stream.level.eqns[place]
        step_size = max((int(np.prod(x.aval.shape)) for x in self._reads(place) if is_var(x)), default=1)
        if any(search.reduction == place for search in self.stream.searches.values()):
            self.whole.found[place] = self.new.y(parts[0]), None if behind is None else behind[0]
        totals = accumulate(self.new, answer.monoid, parts, Window(0, 1, self.steps), step_size)
        if behind is not None:
            n = len(totals)
            totals = self.new.after.call(
                lambda *values: list(answer.monoid.combine(tuple(values[:n]), tuple(values[n:]))), *totals, *behind
            )
        outs = self.new.after.call(answer.finish, *totals)
        for var, out in zip(eqn.outvars, outs, strict=True):
            self._stand_for(var, out)

    def _keep(self, place: int, eqn: JaxprEqn, answer: Mapped, outs: Sequence[Atom], behind: list[Atom] | None) -> None:
        """Notes the blocks that an equation made, and stacks those that something else reads."""
        for k, (var, axis) in enumerate(zip(eqn.outvars, answer.outs, strict=True)):
            if axis is None:  # the same in every step
                continue
            self.blocks[var, axis] = outs[k]
            if behind is not None:
                self.rest[var, axis] = behind[k]
            if place in self.roots and var not in self.whole.results and self._is_wanted(var):
                rows = self.new.y(outs[k])
                self._stand_for(var, self._joined(rows, axis, None if behind is None else behind[k]))

    def _is_wanted(self, var: Var) -> bool:
        """Whether the whole of a value that a root makes is wanted: another loop may read what is not large."""
        stream = self.stream
        return var not in stream.large or any(not stream.reads_blocks(k, var) for k in stream.level.readers(var))

    def _joined(self, rows: Var, axis: Axis, behind: Atom | None) -> Atom:
        covered = self.covered
        (whole,) = self.new.after.call(lambda b: stack_blocks(b, axis, covered), rows)
        if behind is not None:
            (whole,) = self.new.after.call(lambda a, b: append_block(a, b, axis), whole, behind)
        return whole

    def _stand_for(self, var: Var, atom: Atom) -> None:
        """Lets `atom` stand for a variable of the program, with its weak type."""
        self.whole.results[var] = self.new.after.as_weak_as(var, atom)


@record
class Turned:
    """A product whose operands are transposed beforehand: the orders, by operand, and the product of these."""

    eqn: JaxprEqn
    orders: dict[int, tuple[int, ...]]
    numbers: Any

    def run(self, *values: Any) -> list[Any]:
        """The product."""
        return bind(self.eqn, values, self.eqn.params | {"dimension_numbers": self.numbers})


def transposed(eqn: JaxprEqn, whole: Sequence[int]) -> Turned | None:
    """A product that would transpose an operand that is the same in all steps, with its batch dimensions in front."""
    if eqn.primitive.name != "dot_general":
        return None
    contract, batch = eqn.params["dimension_numbers"]
    orders = {
        k: (*batch[k], *(d for d in range(len(eqn.invars[k].aval.shape)) if d not in batch[k]))
        for k in whole
        if tuple(batch[k]) != tuple(range(len(batch[k])))
    }
    if not orders:
        return None

    def moved(side: int, dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(orders[side].index(d) for d in dims) if side in orders else tuple(dims)

    numbers = tuple(tuple(moved(side, dims[side]) for side in (0, 1)) for dims in (contract, batch))
    return Turned(eqn, orders, numbers)


def scan_like(eqn: JaxprEqn) -> JaxprEqn:
    """A scan with the source line and context of `eqn`, for `LoopBuilder`."""
    builder = Builder(eqn)
    builder.call(lambda x: lax.scan(lambda c, v: (c, v), (), x)[1], _sample())
    (scan,) = (one for one in builder.eqns if one.primitive.name == "scan")
    return scan


def _sample() -> Var:
    return _jax.new_var(_jax.ShapedArray((2,), np.dtype(np.float32)))


def _recomputing(body: ClosedJaxpr) -> ClosedJaxpr:
    """A loop's body under `jax.checkpoint`."""

    def whole(*args: Any) -> list[Any]:
        return jax.checkpoint(lambda *values: list(_jax.evaluate(body, values)), prevent_cse=False)(*args)

    traced = _jax.trace_small(whole, body.in_avals)
    assert not traced.consts, "the body closes over nothing"
    return ClosedJaxpr(traced.jaxpr, ())
