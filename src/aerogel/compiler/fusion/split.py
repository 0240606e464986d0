"""Running a loop in parts: steps whose outputs (or inputs) matter, and steps where they do not.

When only a few entries of a loop's outputs are read, most steps need not compute them. The loop becomes *parts*, in the
order in which they run: quiet steps with a body that makes carries only, full steps with the whole body, and blocks
of k steps of which one is full. Outputs that are wanted of all steps all the same (what the steps of a gradient read)
are written to buffers, which go through all parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..loop import Loop, LoopBuilder
from ..program import Builder, copy_equation, is_var, substitute
from ..record import record
from ..zeros import without_zeros
from .window import Window


@record
class Part:
    """Steps `start .. start + count * width` of a loop, in `count` blocks of `width`.

    `full` is the place, within each block, of the step that runs the whole body; None: all steps are quiet.
    """

    start: int
    count: int
    width: int
    full: int | None


def parts_of(window: Window, length: int, reverse: bool) -> list[Part]:
    """The parts of a loop of `length` steps whose full steps are `window`, in the order in which they run."""
    k, last = window.stride, window.start + (window.count - 1) * window.stride
    if window.stride == 1 or window.count == 1:
        parts = [
            Part(0, window.start, 1, None),
            Part(window.start, window.count, 1, 0),
            Part(last + 1, length - last - 1, 1, None),
        ]
    elif not reverse:
        # the full step comes last in its block; the first block may be cut short
        whole = window.start >= k - 1
        begin = window.start - (k - 1) if whole else window.start + 1
        parts = [Part(0, begin if whole else window.start, 1, None)]
        if not whole:
            parts.append(Part(window.start, 1, 1, 0))
        parts.append(Part(begin, window.count - (not whole), k, k - 1))
        parts.append(Part(last + 1, length - last - 1, 1, None))
    else:
        # runs downwards: the full step, the lowest of its block, comes last again
        whole = last + k <= length
        blocks = window.count if whole else window.count - 1
        end = window.start + blocks * k
        parts = [Part(0, window.start, 1, None), Part(window.start, blocks, k, 0)]
        if not whole:
            parts.append(Part(end, last - end, 1, None))
            parts += [Part(last, 1, 1, 0), Part(last + 1, length - last - 1, 1, None)]
        else:
            parts.append(Part(end, length - end, 1, None))
    parts = [p for p in parts if p.count > 0]
    return parts[::-1] if reverse else parts


@dataclass
class Split:
    """A loop being rebuilt in parts.

    Attributes:
        loop: the loop.
        window: its full steps.
        padded: for some stacked inputs (by position), the entries that are not zero, in front: those of the full steps.
        whole: the positions of the outputs that quiet steps make too.
    """

    loop: Loop
    window: Window
    padded: dict[int, Atom]
    whole: tuple[int, ...] = ()
    eqns: list[JaxprEqn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.quiet_eqns, self.quiet_left = self._quiet_body()
        read = {x for eqn in self.quiet_eqns for x in eqn.invars if is_var(x)}
        read.update(x for c in self._quiet_outputs() if is_var(x := substitute(c, self.quiet_left)))
        # What only the full steps read, they read from their own entries: nobody need make the others.
        self.rows: dict[int, Atom] = dict(self.padded)
        builder = Builder(self.loop.eqn)
        for k, (x, var) in enumerate(zip(self.loop.xs, self.loop.body_xs, strict=True)):
            if k not in self.padded and var not in read:
                (self.rows[k],) = builder.call(self._entries, x)
        self.eqns += builder.eqns

    def _entries(self, x: Any) -> Any:
        w = self.window
        return lax.slice_in_dim(x, w.start, w.start + (w.count - 1) * w.stride + 1, w.stride)

    def _quiet_outputs(self) -> list[Atom]:
        """What a quiet step makes: carries, then the outputs that are wanted of all steps."""
        return [*self.loop.next_carry, *(self.loop.body_ys[k] for k in self.whole)]

    def _quiet_body(self) -> tuple[list[JaxprEqn], dict[Var, Atom]]:
        """The equations that a quiet step runs, and what stands for variables that they no longer make."""
        zeros = {self.loop.body_xs[k] for k in self.padded}
        scratch = Builder(self.loop.eqn)
        left = without_zeros(self.loop.body, zeros, scratch)
        needed = {x for c in self._quiet_outputs() if is_var(x := substitute(c, left))}
        kept: list[JaxprEqn] = []
        for eqn in reversed(scratch.eqns):
            if any(v in needed for v in eqn.outvars):
                needed.update(x for x in eqn.invars if is_var(x))
                kept.append(eqn)
        return kept[::-1], left

    def run(self, parts: Sequence[Part]) -> tuple[list[Atom], dict[int, Atom], list[list[tuple[Part, Atom]]]]:
        """Final carries, the outputs in `whole`, and for each other output its pieces `(part, entries)`."""
        builder = Builder(self.loop.eqn)
        avals = [self.loop.ys[k].aval for k in self.whole]
        buffers = [builder.call(lambda aval=aval: lax.full(aval.shape, 0, aval.dtype))[0] for aval in avals]
        self.eqns += builder.eqns
        carry = [*self.loop.init, *buffers]
        pieces: list[list[tuple[Part, Atom]]] = [[] for _ in self.loop.ys]
        seen = 0
        total = sum(p.count for p in parts if p.full is not None)
        for part in parts:
            first = seen if not self.loop.reverse else total - seen - part.count
            carry, made = self._part(part, carry, first)
            if part.full is not None:
                seen += part.count
                for k, atom in zip(self._in_pieces(), made, strict=True):
                    pieces[k].append((part, atom))
        count = len(self.loop.init)
        return carry[:count], dict(zip(self.whole, carry[count:], strict=True)), pieces

    def _in_pieces(self) -> list[int]:
        return [k for k in range(len(self.loop.ys)) if k not in self.whole]

    def _part(self, part: Part, carry: list[Atom], first: int) -> tuple[list[Atom], list[Atom]]:
        if part.count == 1:
            return self._single(part, carry, first)
        new = LoopBuilder(self.loop.eqn, part.count, self.loop.reverse)
        consts, xs = [new.const(c) for c in self.loop.consts], [new.const(x) for x in self.loop.xs]
        small = {k: new.const(x) for k, x in self.rows.items()}
        entries = [new.carry(c) for c in carry]
        now: list[Atom] = [var for var, _, _ in entries]
        block = new.index()
        t = _affine(new.body, block, part.width, part.start)
        row = _affine(new.body, block, 1, first)
        now, made = self._block(new.body, part, consts, now, xs, small, t, row)
        for (_, set_next, _), out in zip(entries, now, strict=True):
            set_next(out)
        stacked = [new.y(y) for y in made]
        self.eqns += new.equations()
        return [final for _, _, final in entries], list(stacked)

    def _single(self, part: Part, carry: list[Atom], first: int) -> tuple[list[Atom], list[Atom]]:
        builder = Builder(self.loop.eqn)
        start, row = _literal(part.start), _literal(first)
        small = dict(self.rows)
        carry, made = self._block(builder, part, self.loop.consts, carry, self.loop.xs, small, start, row)
        stacked = [builder.call(lambda y: lax.expand_dims(y, [0]), y)[0] for y in made]
        self.eqns += builder.eqns
        return carry, stacked

    def _block(
        self,
        builder: Builder,
        part: Part,
        consts: Sequence[Atom],
        carry: Sequence[Atom],
        xs: Sequence[Atom],
        small: dict[int, Atom],
        t: Atom,
        row: Atom,
    ) -> tuple[list[Atom], list[Atom]]:
        """One block: its quiet steps, then its full one; `t` is the index of its lowest step."""
        now = list(carry)
        quiet = part.width if part.full is None else part.width - 1
        if quiet:
            offset = 1 if part.full == 0 else 0
            now = self._quiet_steps(builder, quiet, offset, consts, now, xs, t)
        if part.full is None:
            return now, []
        t_full = _affine(builder, t, 1, part.full)
        return self._step(builder, consts, now, xs, small, t_full, row, full=True)

    def _quiet_steps(
        self,
        builder: Builder,
        count: int,
        offset: int,
        consts: Sequence[Atom],
        carry: Sequence[Atom],
        xs: Sequence[Atom],
        t: Atom,
    ) -> list[Atom]:
        if count == 1:
            t_one = _affine(builder, t, 1, offset)
            return self._step(builder, consts, carry, xs, {}, t_one, None, full=False)[0]
        new = LoopBuilder(self.loop.eqn, count, self.loop.reverse)
        inner_consts, inner_xs = [new.const(c) for c in consts], [new.const(x) for x in xs]
        base = new.const(t)
        entries = [new.carry(c) for c in carry]
        (t_now,) = new.body.call(lambda i, t: i + t + np.int32(offset), new.index(), base)
        outs, _ = self._step(
            new.body, inner_consts, [var for var, _, _ in entries], inner_xs, {}, t_now, None, full=False
        )
        for (_, set_next, _), out in zip(entries, outs, strict=True):
            set_next(out)
        builder.eqns += new.equations()
        return [final for _, _, final in entries]

    def _step(
        self,
        builder: Builder,
        consts: Sequence[Atom],
        carry: Sequence[Atom],
        xs: Sequence[Atom],
        small: dict[int, Atom],
        t: Atom,
        row: Atom | None,
        full: bool,
    ) -> tuple[list[Atom], list[Atom]]:
        """One step of the body at index `t`: its carries and buffers, and its other outputs if it is full."""
        loop = self.loop
        env: dict[Var, Atom] = dict(zip(loop.body_consts, consts, strict=True))
        env.update(zip(loop.body_carry, carry[: len(loop.init)], strict=True))
        for k, (x, var) in enumerate(zip(xs, loop.body_xs, strict=True)):
            if k not in self.rows:
                env[var] = _entry(builder, x, t)
            elif full:
                assert row is not None
                env[var] = _entry(builder, small[k], row)
        for eqn in loop.body.eqns if full else self.quiet_eqns:
            builder.eqns.append(copy_equation(eqn, env))

        def final(x: Atom) -> Atom:
            return substitute(x if full else substitute(x, self.quiet_left), env)

        nexts = [final(x) for x in loop.next_carry]
        for k, buffer in zip(self.whole, carry[len(nexts) :], strict=True):
            nexts += builder.call(_written, buffer, final(loop.body_ys[k]), t)
        return nexts, [final(loop.body_ys[k]) for k in self._in_pieces()] if full else []


def _entry(builder: Builder, x: Atom, t: Atom) -> Atom:
    """The entry `t` of a stacked value."""
    if isinstance(t, Literal):
        at = int(t.val)
        return builder.call(lambda x: lax.index_in_dim(x, at, 0, keepdims=False), x)[0]
    return builder.call(lambda x, t: lax.dynamic_index_in_dim(x, t, 0, keepdims=False), x, t)[0]


def _written(buffer: Any, value: Any, t: Any) -> Any:
    return lax.dynamic_update_index_in_dim(buffer, lax.expand_dims(value, [0]), t, 0)


def _affine(builder: Builder, t: Atom, scale: int, offset: int) -> Atom:
    """`scale * t + offset`, an index."""
    if isinstance(t, Literal):
        return _literal(scale * int(t.val) + offset)
    if scale != 1:
        (t,) = builder.call(lambda t: t * np.int32(scale), t)
    return t if not offset else builder.call(lambda t: t + np.int32(offset), t)[0]


def _literal(value: int) -> Literal:
    return Literal(np.int32(value), _jax.ShapedArray((), np.dtype(np.int32)))


def in_order(builder: Builder, pieces: list[tuple[Part, Atom]]) -> Atom:
    """The entries of all full steps, by index."""
    ordered = [atom for _, atom in sorted(pieces, key=lambda piece: piece[0].start)]
    if len(ordered) == 1:
        return ordered[0]
    (whole,) = builder.call(lambda *parts: lax.concatenate(parts, 0), *ordered)
    return whole
