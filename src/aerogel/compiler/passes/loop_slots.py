"""Buffers that every step of a loop touches at an index of its own are inputs and outputs of the steps.

`fori_loop(0, n, lambda i, b: b.at[i].set(f(x[i])), zeros)` carries all of `b` and reads all of `x`, and its gradient
goes over both in every step: n^2. As a scan over `x` with stacked outputs it is linear, and the other loop passes see
what it does.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, Var

from ..exactness import Exactness
from ..known.facts import Affine, body_facts, level_counters
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, LoopBuilder, as_loop
from ..loops.slots import Slot, find_slots
from ..loops.track_rows import TrackRows, read_in_turn
from ..loops.tracks import Track, find_tracks
from ..pipeline import Context
from ..program import Program, copy_equation, is_var, producers, substitute, users, where
from ..record import record
from ..report import Decision

NAME = "loop-slots"


@record
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
            readers = users(loop.body)
            tracks = find_tracks(loop, facts, readers, producers(loop.body), level.read_by)
            slots = find_slots(loop, facts, readers)
            free = early or carries_nothing(loop, tracks, facts)
            dear = [] if free else [slot for slot in slots if is_copied(slot, loop)]
            slots = [slot for slot in slots if slot not in dear]
            for slot in dear:
                if slot.eqn.outvars[0] not in left:
                    left.add(slot.eqn.outvars[0])
                    decisions.append(
                        Decision(NAME, slot.what, where(slot.eqn), False, "it would be copied for the loop")
                    )
            if slots or tracks:
                edits.append(_rewrite(place, loop, slots, tracks, facts))
                lines = [(slot.what, where(slot.eqn)) for slot in slots]
                lines += [(track.what, where(track.touches[-1].eqn)) for track in tracks]
                why = "every step touches its own index"
                decisions += [Decision(NAME, what, line, True, why) for what, line in lines]
        if not edits:
            break
        jaxpr, _ = apply_edits(jaxpr, edits)
    return jaxpr


# Bytes of a copy that cost less than anything a loop does.
SMALL_COPY = 65_536


def is_copied(slot: Slot, loop: Loop) -> bool:
    """Whether a read of a constant, as an input of the steps, is first copied: part of it, or another order of it."""
    shape, dtype = slot.source.aval.shape, slot.source.aval.dtype
    as_it_is = slot.dim == 0 and slot.place.scale > 0 and loop.length == shape[0]
    return not as_it_is and loop.length * (slot.source.aval.size // shape[slot.dim]) * dtype.itemsize > SMALL_COPY


def carries_nothing(loop: Loop, tracks: list[Track], facts: dict[Var, Affine]) -> bool:
    """Whether the steps hand on no more than counters and buffers that they walk along: all at once they copy nothing.

    (`y.at[:, i].set(tanh(x[:, i]))` of 33 x 801, value and gradient: 2.3 of the time by hand with its reads in the
    loop, 1.0 with all steps at once.)
    """
    walked = {track.carry for track in tracks}
    return all(k in walked or v in facts for k, v in enumerate(loop.body_carry))


def _rewrite(place: int, loop: Loop, slots: list[Slot], tracks: list[Track], facts: dict[Var, Affine]) -> Edit:
    # Buffers that are filled from the end: the same steps, counted the other way.
    turned = not loop.xs and all(one.place.scale < 0 for one in (*slots, *tracks))
    turned = turned and all(is_var(v) and v in facts for v in loop.body_ys)
    if turned:
        slots = [replace(slot, place=slot.place.turned(loop.length)) for slot in slots]
        tracks = [replace(track, place=track.place.turned(loop.length)) for track in tracks]
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse != turned)
    env, setters = _inputs(new, loop, {track.carry for track in tracks})
    rows = [TrackRows(new, track, loop.init[track.carry]) for track in tracks]
    _copy_body(new, loop, slots, rows, env)
    outs = [substitute(x, env) for x in loop.body.outvars]
    for set_next, out in zip(setters, outs, strict=False):
        if set_next is not None:
            set_next(out)
    results: dict[Var, Atom] = {}
    for one in rows:
        last = loop.next_carry[one.track.carry]
        assert is_var(last)
        whole = one.finish(last)
        if whole is not None:
            results[loop.finals[one.track.carry]] = whole
    for y, old, out in zip(loop.ys, loop.body_ys, outs[len(setters) :], strict=True):
        if is_var(old) and old in facts:  # in the order of the old loop's steps, whichever way the new one runs
            results[y] = _count(new, facts[old], y)
        else:
            new.y(out, y)
    return Edit(place, frozenset({place}), new.equations(), results, frozenset({place}))


Setters = list[Callable[[Atom], None] | None]


def _inputs(new: LoopBuilder, loop: Loop, gone: set[int]) -> tuple[dict[Var, Atom], Setters]:
    """Atoms for the body's inputs, and what sets each carry's next value; carries in `gone` have none."""
    ins: list[Atom] = [new.const(c) for c in loop.consts]
    setters: Setters = []
    for k, (init, final) in enumerate(zip(loop.init, loop.finals, strict=True)):
        if k in gone:
            ins.append(_jax.new_var(final.aval))  # nobody reads it
            setters.append(None)
        else:
            own = _jax.new_var(final.aval) if isinstance(final, _jax.DropVar) else final
            var, set_next = new.keep_carry(init, own)
            ins.append(var)
            setters.append(set_next)
    ins += [new.x(x) if is_var(x) else x for x in loop.xs]
    return dict(zip(loop.body.invars, ins, strict=True)), setters


def _copy_body(new: LoopBuilder, loop: Loop, slots: list[Slot], rows: list[TrackRows], env: dict[Var, Atom]) -> None:
    """The body, in which slots are inputs of the step and buffers that it walks along are rows."""
    reads = {id(slot.eqn): slot for slot in slots}
    touches = {id(touch.eqn): (one, touch) for one in rows for touch in one.track.touches}
    for eqn in loop.body.eqns:
        if id(eqn) in touches:
            one, touch = touches[id(eqn)]
            one.touch(touch, env)
        elif id(eqn) in reads:
            slot, (out,) = reads[id(eqn)], eqn.outvars
            entry, shape = new.x(read_in_turn(new, slot.source, slot.place, slot.dim)), out.aval.shape
            (env[out],) = new.body.call(lambda v, shape=shape: lax.reshape(v, shape), entry)
        else:
            new.body.eqns.append(copy_equation(eqn, env))


def _count(new: LoopBuilder, fact: Affine, y: Var) -> Atom:
    dtype, shape = y.aval.dtype, y.aval.shape

    def count() -> Any:
        steps = lax.broadcasted_iota(dtype, shape, 0)
        return steps * np.asarray(fact.scale, dtype) + np.asarray(fact.offset, dtype)

    (out,) = new.before.call(count)
    return new.before.as_weak_as(y, out)
