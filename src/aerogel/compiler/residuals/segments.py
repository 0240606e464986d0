"""Two loops in segments: the second runs a segment of the first again, and reads what that stacks.

A backward loop reads what the forward loop stacked in all of its steps. Instead the forward loop stacks its state at
the start of each segment; the backward loop goes segment by segment, runs the steps of one forward again from there,
and then its own. With about as many segments as steps in each, both stacks are of the root of the number of steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, DropVar, JaxprEqn, Var

from ..cost import nbytes
from ..level import Edit
from ..loop import Loop, LoopBuilder
from ..program import Builder, copy_equation, is_var
from ..record import record
from .derived import in_order

# A divisor of the number of steps is taken that is so near to the length of segments which takes least memory.
NEAR = 1.5


@record
class Pair:
    """A loop, and the only one that reads some of its outputs, `residuals`, step by step.

    `derived` has the carries of the first loop, by place, that are made again where a segment starts, each with the
    equations of the body that make it of what other carries become.
    """

    first: Loop
    second: Loop
    residuals: frozenset[Var]
    derived: dict[int, list[JaxprEqn]] = field(default_factory=dict)

    @property
    def residual_bytes(self) -> int:
        """What the first loop stacks for the second."""
        return sum(nbytes(y.aval) for y in self.residuals)

    def segment_length(self) -> int:
        """The number of steps in a segment with which the two stacks take least memory; a divisor, if one is near."""
        length = self.first.length
        carry_bytes = sum(nbytes(v.aval) for k, v in enumerate(self.first.body_carry) if k not in self.derived)
        best = math.sqrt(max(1.0, length * length * carry_bytes / self.residual_bytes))
        near = [k for k in range(1, length) if length % k == 0 and best / NEAR <= k <= best * NEAR]
        return min(near, key=lambda k: abs(math.log(k / best)), default=max(1, min(round(best), length)))


def in_segments(pair: Pair, places: tuple[int, int]) -> tuple[Edit, Edit]:
    """The edits that run both loops, which stand at `places`, in segments.

    Steps that fill no segment are the first ones of the first loop; what they stack is kept.
    """
    work = _Segments(pair, pair.segment_length())
    work.run_first()
    work.run_second()
    touched = frozenset(places)
    first, second = (
        Edit(place, frozenset((place,)), eqns, results, touched)
        for place, eqns, results in zip(places, work.eqns, work.results, strict=True)
    )
    return first, second


@dataclass
class _Segments:
    """Indices `0 .. length` of the steps are those of the head, in front or behind, and `count` segments of `size`."""

    pair: Pair
    size: int
    eqns: tuple[list[JaxprEqn], list[JaxprEqn]] = field(default_factory=lambda: ([], []))
    results: tuple[dict[Var, Atom], dict[Var, Atom]] = field(default_factory=lambda: ({}, {}))
    starts: dict[int, Var] = field(default_factory=dict)  # carries of the first loop where segments start, stacked
    of_head: dict[Var, Atom] = field(default_factory=dict)  # what the first loop stacks in the head

    def __post_init__(self) -> None:
        self.count = self.pair.first.length // self.size
        self.head = self.pair.first.length - self.count * self.size

    def run_first(self) -> None:
        """The first loop: the head, then the segments, of which the starts are stacked."""
        loop, out = self.pair.first, Builder(self.pair.first.eqn)
        kept = [y for y in loop.ys if y not in self.pair.residuals]
        carry: list[Atom] = list(loop.init)
        if self.head:
            carry, self.of_head = self._head(out, loop, carry, [self._head_of(out, x) for x in loop.xs], loop.ys)
        new = LoopBuilder(loop.eqn, self.count, loop.reverse)
        carried, setters, finals = carried_through(new, loop, carry)
        self.starts = {k: new.y(v) for k, v in enumerate(carried) if k not in self.pair.derived}
        eqn, made = loop.run([*self._consts(new, loop), *carried, *self._entries(new, loop)], self.size, kept)
        new.body.eqns.append(eqn)
        for set_next, v in zip(setters, loop.finals, strict=True):
            set_next(made[v])
        stacks = {y: new.y(made[y]) for y in kept}
        out.eqns += new.equations()
        self._finish(0, out, loop, finals, stacks, self.of_head)

    def run_second(self) -> None:
        """The second loop: the segments, in each of which the first one runs again, and the head where its turn is."""
        first, loop, out = self.pair.first, self.pair.second, Builder(self.pair.second.eqn)
        carry: list[Atom] = list(loop.init)
        ys: dict[Var, Atom] = {}
        head_first = loop.reverse == first.reverse
        if self.head and head_first:
            carry, ys = self._second_head(out, carry)
        new = LoopBuilder(loop.eqn, self.count, loop.reverse)
        carried, setters, finals = carried_through(new, loop, carry)
        start = self._start(new)
        residuals = [y for y in first.ys if y in self.pair.residuals]
        again, stacked = first.run(
            [*self._consts(new, first), *start, *self._entries(new, first)], self.size, residuals
        )
        entries = self._entries(new, loop, {y: stacked[y] for y in residuals})
        eqn, made = loop.run([*self._consts(new, loop), *carried, *entries], self.size, loop.ys)
        new.body.eqns += [again, eqn]
        for set_next, v in zip(setters, loop.finals, strict=True):
            set_next(made[v])
        stacks = {y: new.y(made[y]) for y in loop.ys}
        out.eqns += new.equations()
        if self.head and not head_first:
            finals, ys = self._second_head(out, finals)
        self._finish(1, out, loop, finals, stacks, ys)

    def _start(self, new: LoopBuilder) -> list[Atom]:
        """The carries of the first loop where a segment starts, in the body of the second."""
        first, derived = self.pair.first, self.pair.derived
        ends = first.next_carry
        env: dict[Var, Atom] = dict(zip(first.body_consts, self._consts(new, first), strict=True))
        start: dict[int, Atom] = {k: new.x(v) for k, v in self.starts.items()}
        env.update((x, start[k]) for k, x in enumerate(ends) if k in start and is_var(x))
        for k in in_order(derived, ends):
            x = ends[k]
            assert is_var(x), "what is made again is made by an equation"
            new.body.eqns += [copy_equation(eqn, env) for eqn in derived[k]]
            start[k] = env[x]
        return [start[k] for k in range(len(ends))]

    def _second_head(self, out: Builder, carry: Sequence[Atom]) -> tuple[list[Atom], dict[Var, Atom]]:
        loop = self.pair.second
        xs = [self.of_head[x] if x in self.pair.residuals else self._head_of(out, x) for x in loop.xs]
        return self._head(out, loop, carry, xs, loop.ys)

    def _head(
        self, out: Builder, loop: Loop, carry: Sequence[Atom], xs: Sequence[Atom], ys: Sequence[Var]
    ) -> tuple[list[Atom], dict[Var, Atom]]:
        eqn, made = loop.run([*loop.consts, *carry, *xs], self.head, ys)
        out.eqns.append(eqn)
        return [made[v] for v in loop.finals], {y: made[y] for y in ys}

    def _finish(
        self,
        which: int,
        out: Builder,
        loop: Loop,
        finals: Sequence[Atom],
        stacks: dict[Var, Var],
        head: dict[Var, Atom],
    ) -> None:
        """Notes what stands for the results of a loop."""
        results = self.results[which]
        results.update((v, x) for v, x in zip(loop.finals, finals, strict=True) if not isinstance(v, DropVar))
        for y, stack in stacks.items():
            (whole,) = out.call(lambda v: lax.reshape(v, (v.shape[0] * v.shape[1], *v.shape[2:])), stack)
            if head:
                pieces = [whole, head[y]] if self._head_is_behind else [head[y], whole]
                (whole,) = out.call(lambda a, b: lax.concatenate([a, b], 0), *pieces)
            results[y] = out.as_weak_as(y, whole)
        self.eqns[which].extend(out.eqns)

    @property
    def _head_is_behind(self) -> bool:
        return self.pair.first.reverse

    def _head_of(self, out: Builder, x: Atom) -> Atom:
        """The entries of the head of what is stacked for all steps."""
        start = self.count * self.size if self._head_is_behind else 0
        return out.call(lambda v: lax.slice_in_dim(v, start, start + self.head), x)[0]

    def _entries(self, new: LoopBuilder, loop: Loop, made: dict[Var, Var] | None = None) -> list[Atom]:
        """A segment's entries of the inputs of a loop, but for those that are `made` in the segment."""
        begin = 0 if self._head_is_behind else self.head
        there = made or {}

        def entry(x: Atom) -> Atom:
            if is_var(x) and x in there:
                return there[x]
            (rows,) = new.before.call(self._split(begin), x)
            assert is_var(rows), "what has an entry for each step is an array"
            return new.x(rows)

        return [entry(x) for x in loop.xs]

    def _split(self, begin: int) -> Callable[[Any], Any]:
        count, size = self.count, self.size

        def split(v: Any) -> Any:
            return lax.reshape(lax.slice_in_dim(v, begin, begin + count * size), (count, size, *v.shape[1:]))

        return split

    def _consts(self, new: LoopBuilder, loop: Loop) -> list[Atom]:
        return [new.const(c) for c in loop.consts]


def carried_through(
    new: LoopBuilder, loop: Loop, init: Sequence[Atom]
) -> tuple[list[Var], list[Callable[[Atom], None]], list[Atom]]:
    """The carries of `loop` as carries of the new one: inside the body, how they are set, and after the loop."""
    finals: list[Atom] = [_jax.new_var(v.aval) for v in loop.finals]
    made = [new.keep_carry(atom, final) for atom, final in zip(init, finals, strict=True) if is_var(final)]
    return [var for var, _ in made], [set_next for _, set_next in made], finals
