"""Loops whose steps leave out what a mask empties: of causal attention, the keys behind the queries of a block.

The axis that the mask runs along (*columns*) is followed through a step. Outside of the columns that a step sees,
everything on the way to a sum must be what adds nothing to it; then the step is the same on the columns that it sees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from .axes import Axis, Mapped, No, Reduced, along, along_output, take_block
from .loop import Loop, LoopBuilder
from .outside import Outside, Own, outside
from .program import Builder, copy_equation, is_var, producers, substitute, users
from .visible import Known


class Whole(Exception):
    """Something needs all columns; says what."""


@dataclass
class Columns:
    """An axis through the step of a loop.

    Attributes:
        loop: the loop.
        length: of the axis.
        where: where it stands in the values of the body that have it.
        answers: by place, what each equation of the body that has to do with it is along it.
    """

    loop: Loop
    length: int
    where: dict[Var, Axis] = field(default_factory=dict)
    answers: dict[int, Mapped | Reduced] = field(default_factory=dict)

    @property
    def carried(self) -> dict[int, Axis]:
        """The carries that have it, by position."""
        places = ((k, self.where.get(v)) for k, v in enumerate(self.loop.body_carry))
        return {k: axis for k, axis in places if axis is not None}


def columns_of(loop: Loop, seed: Var, dim: int) -> Columns:
    """The axis that stands in a dimension of a value of a loop's body.

    Raises:
        Whole: something in a step, or outside of the loop, needs it as a whole.
    """
    found = Columns(loop, seed.aval.shape[dim])
    body = loop.body
    makers, readers = producers(body), users(body)
    carries = list(zip(loop.body_carry, loop.next_carry, strict=True))
    waiting: list[tuple[Atom, Axis]] = [(seed, Axis(dim))]
    while waiting:
        v, axis = waiting.pop()
        if not is_var(v):
            raise Whole("a step starts anew from a number")
        if v in found.where:
            if found.where[v] != axis:
                raise Whole("a value has the columns along two axes")
            continue
        found.where[v] = axis
        for carry, after in carries:
            if v is carry or v is after:
                waiting.append((after if v is carry else carry, axis))
        for place in [p for p in (*readers.get(v, ()), makers.get(v, -1)) if p >= 0]:
            waiting += _asked(found, place)
    if any(is_var(y) and y in found.where for y in loop.body_ys):
        raise Whole("each step stores all of them")
    return found


def _asked(found: Columns, place: int) -> list[tuple[Atom, Axis]]:
    """Where an equation has the columns, as far as it is known now."""
    eqn = found.loop.body.eqns[place]
    ins = {k: found.where[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in found.where}
    outs = {k: found.where[v] for k, v in enumerate(eqn.outvars) if v in found.where}
    answer = along(eqn, ins, found.length, after_differentiation=True) if ins else None
    if answer is None:
        answer = along_output(eqn, outs, found.length)
    if isinstance(answer, No):
        raise Whole(answer.reason)
    found.answers[place] = answer
    known: list[tuple[Atom, Axis | None]] = list(zip(eqn.invars, answer.ins, strict=True))
    if isinstance(answer, Mapped):
        known += zip(eqn.outvars, answer.outs, strict=True)
    elif outs:
        raise Whole(f"`{eqn.primitive.name}` of all columns is one of them")
    return [(x, axis) for x, axis in known if axis is not None and not isinstance(x, Literal)]


def check_outside(columns: Columns, known: Known, seen: np.ndarray) -> None:
    """Nothing, if what is not seen in a step counts nowhere.

    Raises:
        Whole: it might; says where.
    """
    loop, left = columns.loop, ~seen
    values: dict[Var, Outside] = {}
    values.update((loop.body_carry[k], Own(loop.body_carry[k])) for k in columns.carried)
    for place, eqn in enumerate(loop.body.eqns):
        answer = columns.answers.get(place)
        if answer is None:
            continue
        found = outside(eqn, answer, values, known, left)
        if isinstance(answer, Mapped):
            values.update((v, found) for v, axis in zip(eqn.outvars, answer.outs, strict=True) if axis is not None)
        elif not found.adds_nothing(answer.monoid.name):
            raise Whole(f"`{eqn.primitive.name}` of what the mask leaves out is not known to add nothing")
    for k in columns.carried:
        after = loop.next_carry[k]
        if not is_var(after) or values.get(after) != Own(loop.body_carry[k]):
            raise Whole("a carry changes where the mask leaves nothing")


@dataclass(frozen=True)
class Part:
    """Consecutive steps of a loop, and the columns that they see together: indices from `low` to `high`."""

    first: int
    last: int  # behind it
    low: int
    high: int

    @property
    def work(self) -> int:
        """Steps times columns."""
        return (self.last - self.first) * (self.high - self.low)


def in_parts(columns: Columns, parts: Sequence[Part]) -> tuple[list[JaxprEqn], dict[Var, Atom]]:
    """Loops one after the other in place of one, each over its own columns; and what stands for its results."""
    loop = columns.loop
    eqns: list[JaxprEqn] = []
    carries: list[Atom] = list(loop.init)
    stacked: list[dict[Part, Var]] = [{} for _ in loop.ys]
    for part in reversed(parts) if loop.reverse else parts:
        made, carries, ys = _part(columns, part, carries)
        eqns += made
        for k, y in enumerate(ys):
            stacked[k][part] = y
    end = Builder(loop.eqn)
    results: dict[Var, Atom] = dict(zip(loop.finals, carries, strict=True))
    for y, pieces in zip(loop.ys, stacked, strict=True):
        (results[y],) = end.call(lambda *xs: lax.concatenate(xs, 0), *(pieces[part] for part in parts))
    for v, atom in list(results.items()):
        results[v] = end.as_weak_as(v, atom)
    return [*eqns, *end.eqns], results


def _part(columns: Columns, part: Part, carries: Sequence[Atom]) -> tuple[list[JaxprEqn], list[Atom], list[Var]]:
    """The steps of a part: their equations, the carries behind them, and what they stack."""
    loop, size = columns.loop, part.high - part.low
    new = LoopBuilder(loop.eqn, part.last - part.first, loop.reverse)

    def cut(x: Atom, v: Var, more: int = 0) -> Atom:
        axis = columns.where.get(v)
        if axis is None or size == columns.length:
            return x
        return new.before.call(_taking(axis, columns.length, part.low, size, more), x)[0]

    env: dict[Var, Atom] = {}
    for v, x in zip(loop.body_consts, loop.consts, strict=True):
        env[v] = new.const(cut(x, v))
    for v, x in zip(loop.body_xs, loop.xs, strict=True):
        (steps,) = new.before.call(partial(lax.slice_in_dim, start_index=part.first, limit_index=part.last), x)
        inside = cut(steps, v, 1)
        assert is_var(inside)
        env[v] = new.x(inside)
    ends: list[Callable[[Atom], None]] = []
    finals: list[Atom] = []
    for v, x in zip(loop.body_carry, carries, strict=True):
        env[v], set_next, final = new.carry(cut(x, v))
        ends.append(set_next)
        finals.append(final)
    for place, eqn in enumerate(loop.body.eqns):
        _step(columns, new, place, eqn, part, env)
    for set_next, after in zip(ends, loop.next_carry, strict=True):
        set_next(substitute(after, env))
    ys = [new.y(substitute(y, env)) for y in loop.body_ys]
    new.after.like = loop.eqn
    behind: list[Atom] = []
    for v, x, final in zip(loop.body_carry, carries, finals, strict=True):
        axis = columns.where.get(v)
        if axis is not None and size != columns.length:
            (final,) = new.after.call(_putting(axis, columns.length, part.low, size), x, final)
        behind.append(final)
    return new.equations(), behind, ys


def _step(columns: Columns, new: LoopBuilder, place: int, eqn: JaxprEqn, part: Part, env: dict[Var, Atom]) -> None:
    answer = columns.answers.get(place)
    if answer is None:
        new.body.eqns.append(copy_equation(eqn, env))
        return
    new.body.like = eqn
    low, size = part.low, part.high - part.low
    reads = [substitute(x, env) for x in eqn.invars]
    outs = new.body.call(lambda *xs: list(answer.block(low, size, *xs)), *reads)
    if isinstance(answer, Reduced):
        outs = new.body.call(answer.finish, *outs)
    env.update((v, new.body.as_weak_as(v, out)) for v, out in zip(eqn.outvars, outs, strict=True))


def _taking(axis: Axis, length: int, low: int, size: int, more: int) -> Callable[..., Any]:
    """What cuts columns out of a value that has `more` dimensions in front."""
    at = Axis(axis.dim + more, axis.outer, axis.inner)

    return lambda x: take_block(x, at, length, low, size)


def _putting(axis: Axis, length: int, low: int, size: int) -> Callable[..., Any]:
    """What puts columns back."""

    def put(x: Any, part: Any) -> Any:
        split = (*x.shape[: axis.dim], axis.outer, length, axis.inner, *x.shape[axis.dim + 1 :])
        own = (*split[: axis.dim + 1], size, *split[axis.dim + 2 :])
        whole = lax.dynamic_update_slice_in_dim(lax.reshape(x, split), lax.reshape(part, own), low, axis.dim + 1)
        return lax.reshape(whole, x.shape)

    return put
