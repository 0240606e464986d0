"""A stretch of repeated equations as one loop."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..loop import LoopBuilder
from ..program import copy_equation, is_var
from ..record import record
from ..streams.streaming import scan_like
from .rolled_steps import Carried, Entries, Inner, Numbers, Operand, Part, Place, Starts, Steps
from .rolled_sums import Sum, sums
from .strips import Strip, strip_of


@record
class Rolled:
    """The loop that stands for steps.

    Attributes:
        eqns: what prepares it, and the loop.
        results: for what the last step hands on, the loop's result.
        parts: for what else is read, which entry of which result it is.
        constants: arrays that the program has to hold for it.
    """

    eqns: list[JaxprEqn]
    results: dict[Var, Atom]
    parts: dict[Var, Part]
    constants: dict[Var, np.ndarray]


def rolled(steps: Steps, is_read: Callable[[Var], bool]) -> Rolled:
    """The loop; `is_read` says whether a value is read by anything but the steps."""
    return _Rolling(steps, is_read).run()


class _Rolling:
    def __init__(self, steps: Steps, is_read: Callable[[Var], bool]) -> None:
        self.steps, self.is_read, self.count = steps, is_read, len(steps.steps)
        self.body = steps.steps[0]
        found = sums(steps, is_read)
        self.sums = {one.carry: one for one in found if not one.is_carried}
        self.carried_sums = {e: p for one in found if one.is_carried for e, p in zip(one.adds, one.pads, strict=True)}
        # A derivative goes backwards: so does the loop, and what it reads and stacks lies in its order.
        self.turned = any(one.falls for one in found) or steps.reads_falling
        self.loop = LoopBuilder(scan_like(self.body[0]), self.count, self.turned)
        self.values: dict[Place, Atom] = {}
        self.constants: dict[Var, np.ndarray] = {}

    def run(self) -> Rolled:
        """The loop, equation by equation of a step."""
        inits = {place: init for place, init in self.steps.carries.items() if place not in self.sums}
        carries = {place: self.loop.carry(init) for place, init in inits.items()}
        self.carried = {place: inside for place, (inside, _, _) in carries.items()}
        gone = {e for one in self.sums.values() for e in (*one.pads, *one.adds)} | {*self.carried_sums.values()}
        for e, eqn in enumerate(self.body):
            if e not in gone:
                self._add(e, eqn)
        results: dict[Var, Atom] = {}
        for (e, o), (_, set_next, final) in carries.items():
            set_next(self.values[e, o])
            results[self.steps.steps[-1][e].outvars[o]] = final
        for one in self.sums.values():
            results[self.steps.steps[-1][one.carry[0]].outvars[0]] = self._total(one)
        parts = self._stacked(results)
        return Rolled(self.loop.equations(), results, parts, self.constants)

    def _total(self, one: Sum) -> Atom:
        """A sum of windows, which the steps stack."""
        windows = {e: self.loop.y(self._atom(self.steps.operands[e][0])) for e in dict.fromkeys(one.pads)}
        self.loop.after.like = self.body[one.adds[0]]
        shape = tuple(self.loop.after.like.outvars[0].aval.shape)

        def total(*given: Any) -> Any:
            *init, stacks = [*given[: -len(one.pads)], given[-len(one.pads) :]]
            turned = [lax.rev(x, (0,)) if one.falls != self.turned else x for x in stacks]
            terms = [*init, *(strip.added(x, shape) for strip, x in zip(one.strips, turned, strict=True))]
            return sum(terms[1:], terms[0])

        init = [] if one.init is None else [one.init]
        (found,) = self.loop.after.call(total, *init, *(windows[e] for e in one.pads))
        return found

    def _add(self, e: int, eqn: JaxprEqn) -> None:
        operands = self.steps.operands[e]
        if e in self.carried_sums:
            made = self._added(e, self.carried_sums[e])
        elif e in self.steps.moving:
            made = self._moving(eqn, operands, *self.steps.moving[e])
        else:
            atoms = [self._atom(x) for x in operands]
            env: dict[Var, Atom] = {}
            self.loop.body.eqns.append(copy_equation(eqn.replace(invars=atoms), env))
            made = [env.get(v, v) for v in eqn.outvars]
        self.values.update({(e, o): x for o, x in enumerate(made)})

    def _atom(self, operand: Operand) -> Atom:
        match operand:
            case Inner(place):
                return self.values[place]
            case Carried(place):
                return self.carried[place]
            case Numbers():
                return self._number(operand)
            case Entries():
                return self._entry(operand)
            case Literal():
                return operand
            case _:
                return self.loop.const(operand)

    def _entry(self, entries: Entries) -> Var:
        entries = entries.turned(self.count) if self.turned else entries
        (stacked,) = self.loop.before.call(entries.stacked(self.count), entries.array)
        assert is_var(stacked)
        entry = self.loop.x(stacked)
        if tuple(entry.aval.shape) == entries.shape:
            return entry
        (shaped,) = self.loop.body.call(lambda v: lax.reshape(v, entries.shape), entry)
        assert is_var(shaped)
        return shaped

    def _number(self, numbers: Numbers) -> Atom:
        values = numbers.values[::-1] if self.turned else numbers.values
        affine = _affine(values)
        if affine is not None:
            scale, offset = affine
            (stacked,) = self.loop.before.call(
                lambda: lax.convert_element_type(
                    lax.iota(np.int32, len(values)) * np.int32(scale) + np.int32(offset), values.dtype
                )
            )
        else:
            stacked = _jax.new_var(_jax.ShapedArray(values.shape, values.dtype))
            self.constants[stacked] = values
        assert is_var(stacked)
        weak = bool(getattr(numbers.like.aval, "weak_type", False))
        entry = self.loop.x(stacked)
        if not weak:
            return entry
        return self.loop.body.call(lambda v: _jax.convert_element_type(v, values.dtype, True), entry)[0]

    def _moving(self, eqn: JaxprEqn, operands: Sequence[Operand], first: Starts, move: Starts) -> list[Atom]:
        """A slice or a padding at a place that moves from step to step."""
        shape = tuple(eqn.outvars[0].aval.shape)
        x = operands[0]
        if eqn.primitive.name == "slice" and isinstance(x, Var):
            entries = Entries(x, first, move, shape, shape)
            if entries.axis is not None:
                return [self._entry(entries)]
            strip = strip_of(first, move, shape, self.count)
            if strip is not None and strip.layers == 1:
                return [self._window(x, strip, min(move) < 0)]
        starts = self._starts(first, move)
        if eqn.primitive.name == "slice":
            read = lambda v, i: lax.dynamic_slice(v, starts(i), shape)  # noqa: E731
            return self.loop.body.call(read, self._atom(x), self.loop.index())
        dtype = eqn.outvars[0].aval.dtype

        def padded(v: Any, fill: Any, i: Any) -> Any:
            return lax.dynamic_update_slice(lax.broadcast(fill.astype(dtype), shape), v, starts(i))

        return self.loop.body.call(padded, *(self._atom(one) for one in operands), self.loop.index())

    def _window(self, x: Var, strip: Strip, falls: bool) -> Var:
        """One of the windows of an array."""
        turned = falls != self.turned
        (stacked,) = self.loop.before.call(lambda v: lax.rev(strip.of(v), (0,)) if turned else strip.of(v), x)
        assert is_var(stacked)
        return self.loop.x(stacked)

    def _added(self, e: int, pad: int) -> list[Atom]:
        """The sum, with one more window added."""
        starts = self._starts(*self.steps.moving[pad])
        window = self._atom(self.steps.operands[pad][0])
        (before,) = [x for x in self.steps.operands[e] if x != Inner((pad, 0))]

        def added(v: Any, window: Any, i: Any) -> Any:
            there = lax.dynamic_slice(v, starts(i), window.shape)
            return lax.dynamic_update_slice(v, there + window, starts(i))

        return self.loop.body.call(added, self._atom(before), window, self.loop.index())

    def _starts(self, first: Starts, move: Starts) -> Callable[[Any], list[Any]]:
        """Places as functions of the index of a step."""
        if self.turned:
            last = self.count - 1
            first, move = tuple(at + last * by for at, by in zip(first, move, strict=True)), tuple(-by for by in move)
        return lambda i: [_affine_in(i, at, by) for at, by in zip(first, move, strict=True)]

    def _stacked(self, results: Mapping[Var, Atom]) -> dict[Var, Part]:
        """What is read of single steps, as entries of an output of the loop."""
        parts: dict[Var, Part] = {}
        for (e, o), x in self.values.items():
            read = [(r, v) for r, step in enumerate(self.steps.steps) if self.is_read(v := step[e].outvars[o])]
            read = [(r, v) for r, v in read if v not in results]
            if read:
                shape = tuple(x.aval.shape)
                y = self.loop.y(x)
                last = self.count - 1
                entry = {v: last - r if self.turned else r for r, v in read}
                parts.update({v: Part(y, (k, *[0] * len(shape)), (1, *shape)) for v, k in entry.items()})
        return parts


def _affine_in(index: Any, offset: int, scale: int) -> Any:
    """`scale * index + offset`, by no more operations than it needs."""
    if not scale:
        return np.int32(offset)
    scaled = index if scale == 1 else index * np.int32(scale)
    return scaled if not offset else scaled + np.int32(offset)


def _affine(values: np.ndarray) -> tuple[int, int] | None:
    """`scale` and `offset`, if the values are `scale * i + offset`, with whole numbers, to the bit."""
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.all(np.abs(values.astype(np.float64)) < 2**24):
        return None
    offset = int(values[0])
    scale = int(values[1]) - offset
    want = (np.arange(len(values), dtype=np.int32) * scale + offset).astype(values.dtype)
    return (scale, offset) if want.tobytes() == values.tobytes() else None
