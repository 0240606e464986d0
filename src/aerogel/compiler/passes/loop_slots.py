"""Buffers that every step of a loop touches at an index of its own are inputs and outputs of the steps.

`fori_loop(0, n, lambda i, b: b.at[i].set(f(x[i])), zeros)` carries all of `b` and reads all of `x`, and its gradient
goes over both in every step: n^2. As a scan over `x` with stacked outputs it is linear, and the other loop passes see
what it does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, Var

from ..exactness import Exactness
from ..facts import Affine, body_facts, level_counters
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, LoopBuilder, as_loop
from ..pipeline import Context
from ..program import Program, copy_equation, is_var, substitute, where
from ..report import Decision
from ..slots import Slot, find_slots

NAME = "loop-slots"


@dataclass(frozen=True)
class LoopSlots:
    """The pass."""

    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with slots made inputs and outputs, and a decision for each."""
        decisions: list[Decision] = []
        early = context.before_differentiation
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions, early)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision], early: bool) -> Jaxpr:
    """Rounds: what one loop's outputs are known to be makes slots of the next.

    With `early`, before differentiation, reads become inputs at any price: their gradients would go over all of a
    buffer in every step.
    """
    left: set[Any] = set()
    while any(eqn.primitive.name == "scan" for eqn in jaxpr.eqns):
        level = Level(jaxpr)
        counters = level_counters(jaxpr)
        edits: list[Edit] = []
        for place, eqn in enumerate(jaxpr.eqns):
            loop = as_loop(eqn)
            if loop is None or loop.length < 2:
                continue
            facts = body_facts(loop, counters)
            slots = find_slots(loop, facts, level.read_by)
            dear = [] if early else [slot for slot in slots if is_copied(slot, loop)]
            slots = [slot for slot in slots if slot not in dear]
            for slot in dear:
                if slot.eqn.outvars[0] not in left:
                    left.add(slot.eqn.outvars[0])
                    decisions.append(
                        Decision(NAME, slot.what, where(slot.eqn), False, "it would be copied for the loop")
                    )
            if slots:
                edits.append(_rewrite(place, loop, slots, facts))
                decisions += [
                    Decision(NAME, slot.what, where(slot.eqn), True, "every step touches its own index")
                    for slot in slots
                ]
        if not edits:
            break
        jaxpr, _ = apply_edits(jaxpr, edits)
    return jaxpr


# Bytes of a copy that cost less than anything a loop does.
SMALL_COPY = 65_536


def is_copied(slot: Slot, loop: Loop) -> bool:
    """Whether a read of a constant, as an input of the steps, is first copied: part of it, or another order of it."""
    if slot.carry is not None:
        return False
    shape, dtype = slot.buffer.aval.shape, slot.buffer.aval.dtype
    as_it_is = slot.dim == 0 and slot.place.scale > 0 and loop.length == shape[0]
    return not as_it_is and loop.length * (slot.buffer.aval.size // shape[slot.dim]) * dtype.itemsize > SMALL_COPY


def _rewrite(place: int, loop: Loop, slots: list[Slot], facts: dict[Var, Affine]) -> Edit:
    # Slots that are filled from the end: the same steps, counted the other way.
    turned = not loop.xs and all(slot.place.scale < 0 for slot in slots)
    turned = turned and all(is_var(v) and v in facts for v in loop.body_ys)
    if turned:
        slots = [replace(slot, place=slot.place.turned(loop.length)) for slot in slots]
        facts = {v: fact.turned(loop.length) for v, fact in facts.items()}
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse != turned)
    env, setters = _inputs(new, loop, {slot.carry for slot in slots})
    earlier = [_earlier_rows(new, slot, loop) for slot in slots]
    _copy_body(new, loop, slots, env, earlier)
    outs = [substitute(x, env) for x in loop.body.outvars]
    for set_next, out in zip(setters, outs, strict=False):
        if set_next is not None:
            set_next(out)
    results: dict[Var, Atom] = {}
    for slot, rows_before in zip(slots, earlier, strict=True):
        if slot.update is not None and slot.carry is not None:
            entry = _entry(new, slot, substitute(slot.update, env))
            rows = new.y(entry)
            for row, set_next in rows_before:
                set_next(entry)
                entry = row
            results[loop.finals[slot.carry]] = _final(new, slot, loop, rows)
    for y, old, out in zip(loop.ys, loop.body_ys, outs[len(setters) :], strict=True):
        if is_var(old) and old in facts:
            results[y] = _count(new, facts[old], y)
        else:
            new.y(out, y)
    return Edit(place, frozenset({place}), new.equations(), results, frozenset({place}))


Setters = list[Callable[[Atom], None] | None]


def _inputs(new: LoopBuilder, loop: Loop, gone: set[int | None]) -> tuple[dict[Var, Atom], Setters]:
    """Atoms for the body's inputs, and what sets each carry's next value; carries in `gone` have none."""
    ins: list[Atom] = [new.const(c) for c in loop.consts]
    setters: Setters = []
    for k, (init, final) in enumerate(zip(loop.init, loop.finals, strict=True)):
        if k in gone:
            # Its reads are replaced; what is left of it in the body is dead.
            ins.append(_jax.new_var(final.aval))
            setters.append(None)
        else:
            own = _jax.new_var(final.aval) if isinstance(final, _jax.DropVar) else final
            var, set_next = new.keep_carry(init, own)
            ins.append(var)
            setters.append(set_next)
    ins += [new.x(x) if is_var(x) else x for x in loop.xs]
    return dict(zip(loop.body.invars, ins, strict=True)), setters


Rows = list[tuple[Var, Callable[[Atom], None]]]


def _earlier_rows(new: LoopBuilder, slot: Slot, loop: Loop) -> Rows:
    """Carries of what was written 1, 2, ... steps before, each with what sets its next value."""
    carries: Rows = []
    for row in slot.rows:
        assert slot.carry is not None

        def entry(buffer: Any, row: int = row) -> Any:
            return lax.squeeze(lax.slice_in_dim(buffer, row, row + 1, axis=slot.dim), [slot.dim])

        (start,) = new.before.call(entry, loop.init[slot.carry])
        var, set_next, _ = new.carry(start)
        carries.append((var, set_next))
    return carries


def _copy_body(new: LoopBuilder, loop: Loop, slots: list[Slot], env: dict[Var, Atom], earlier: list[Rows]) -> None:
    """The body without the writes of slots; their reads become inputs of the step, or carries."""
    before = {
        id(eqn): rows[back - 1][0] for slot, rows in zip(slots, earlier, strict=True) for eqn, back in slot.earlier
    }
    reads = {id(slot.read): slot for slot in slots if slot.read is not None}
    writes = {id(slot.write) for slot in slots if slot.write is not None}
    for eqn in loop.body.eqns:
        if id(eqn) in before:
            shape = eqn.outvars[0].aval.shape
            (env[eqn.outvars[0]],) = new.body.call(lambda v, shape=shape: lax.reshape(v, shape), before[id(eqn)])
        elif id(eqn) in reads:
            env[eqn.outvars[0]] = _read(new, reads[id(eqn)], loop)
        elif id(eqn) not in writes:
            new.body.eqns.append(copy_equation(eqn, env))


def _read(new: LoopBuilder, slot: Slot, loop: Loop) -> Atom:
    """The slot of this step, in the form that the read had: an input of the step."""
    assert slot.read is not None
    source, place, dim = slot.source, slot.place, slot.dim

    def rows(x: Any) -> Any:
        first, end = _range(place, loop.length)
        part = x if (first, end) == (0, x.shape[dim]) else lax.slice_in_dim(x, first, end, axis=dim)
        if place.scale < 0:
            part = lax.rev(part, [dim])
        order = (dim, *(d for d in range(part.ndim) if d != dim))
        return lax.transpose(part, order) if dim else part

    (stacked,) = new.before.call(rows, source)
    assert is_var(stacked)
    shape = slot.read.outvars[0].aval.shape
    (entry,) = new.body.call(lambda v: lax.reshape(v, shape), new.x(stacked))
    return entry


def _range(place: Affine, length: int) -> tuple[int, int]:
    lowest, highest = place.bounds(length)
    return lowest, highest + 1


def _entry(new: LoopBuilder, slot: Slot, update: Atom) -> Atom:
    """What a step writes, without the dimension of the slots."""
    assert slot.carry is not None
    dim, shape = slot.dim, slot.buffer.aval.shape
    entry = (*shape[:dim], *shape[dim + 1 :])
    (out,) = new.body.call(lambda v: lax.reshape(v, entry), update)
    return out


def _final(new: LoopBuilder, slot: Slot, loop: Loop, rows: Var) -> Atom:
    """The buffer after the loop from all that the steps wrote."""
    assert slot.carry is not None
    dim, place, init = slot.dim, slot.place, loop.init[slot.carry]
    lowest, _ = place.bounds(loop.length)
    covers = loop.length == slot.buffer.aval.shape[dim]

    def whole(rows: Any, *init: Any) -> Any:
        order = (*range(1, dim + 1), 0, *range(dim + 1, rows.ndim))
        part = lax.transpose(rows, order) if dim else rows
        if place.scale < 0:
            part = lax.rev(part, [dim])
        if not init:
            return part
        if slot.adds:
            old = lax.slice_in_dim(init[0], lowest, lowest + loop.length, axis=dim)
            part = old + part
            return part if covers else lax.dynamic_update_slice_in_dim(init[0], part, np.int32(lowest), dim)
        # parts side by side: what reads them need not know of the whole
        ends = [lax.slice_in_dim(init[0], 0, lowest, axis=dim), part]
        ends.append(lax.slice_in_dim(init[0], lowest + loop.length, init[0].shape[dim], axis=dim))
        return lax.concatenate([x for x in ends if x.shape[dim]], dim)

    (out,) = new.after.call(whole, rows, *([] if covers and not slot.adds else [init]))
    return out


def _count(new: LoopBuilder, fact: Affine, y: Var) -> Atom:
    dtype, shape = y.aval.dtype, y.aval.shape

    def count() -> Any:
        steps = lax.broadcasted_iota(dtype, shape, 0)
        return steps * np.asarray(fact.scale, dtype) + np.asarray(fact.offset, dtype)

    (out,) = new.before.call(count)
    return out
