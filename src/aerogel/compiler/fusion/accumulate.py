"""How partial results of the steps become one: carries of the loop."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis, Monoid, Reduced, along
from ..loop import Loop, LoopBuilder, strong
from ..program import is_var
from .partials import OF_ALL
from .running import running
from .window import Window, in_window, position

Shape = tuple[int, ...]
# A running sum of T terms loses up to T ulp, a stacked and then reduced one about log2(T). From this many steps on,
# partial sums that are small beside what a step reduces are stacked: it costs no more than a carry (measured), and less
# than a hundredth of the memory of all steps.
STACKED_FROM = 64
SMALL = 128
# Elementwise work on shorter rows than this, if their length is no power of two, takes up to ten times as long as on
# one row (jaxlib 0.10.2, CPU: 3.3 ns a number in rows of 3, 2.2 in rows of 5, 1 in rows of 24; 0.6 in one dimension).
LONG_ROW = 32


def accumulate(
    new: LoopBuilder, monoid: Monoid, partial: Sequence[Atom], window: Window, step_size: int, flat: bool = False
) -> list[Atom]:
    """The combined partial results of the steps in `window`, as atoms after the loop.

    They are combined without their dimensions of the length one: XLA's CPU backend (jaxlib 0.10.2) copies a carry that
    each step sees in another shape.

    Args:
        new: the loop under construction; `partial` are atoms of its body.
        monoid: how two of them combine.
        window: the steps that count.
        step_size: elements that one step reduces, to tell whether its partial results are small beside them.
        flat: whether those of short rows are combined in one dimension.
    """
    shapes = [x.aval.shape for x in partial]
    carried = [_carried(shape, flat) for shape in shapes]
    if carried == shapes or len(set(filter(None, shapes))) > 1:
        return _accumulated(new, monoid, partial, window, step_size)

    def reshaped(to: Sequence[Shape], *values: Any) -> list[Any]:
        return [lax.reshape(x, shape) for x, shape in zip(values, to, strict=True)]

    partial = new.body.call(functools.partial(reshaped, carried), *partial)
    return new.after.call(functools.partial(reshaped, shapes), *_accumulated(new, monoid, partial, window, step_size))


def _carried(shape: Shape, flat: bool) -> Shape:
    """The shape in which results of a shape are accumulated."""
    # XLA's CPU backend goes over such an array number by number
    has_short_rows = len(shape) > 1 and 2 < shape[-1] < LONG_ROW and shape[-1].bit_count() > 1
    return (math.prod(shape),) if flat and has_short_rows else tuple(n for n in shape if n != 1)


def _accumulated(
    new: LoopBuilder, monoid: Monoid, partial: Sequence[Atom], window: Window, step_size: int
) -> list[Atom]:
    avals = [strong(x.aval) for x in partial]
    start = new.before.call(lambda: list(monoid.identity(avals)))
    hit = is_hit(new, window)
    (first,) = avals[:1]
    small = max(int(np.prod(a.shape)) for a in avals) * SMALL <= step_size
    sums = monoid.name in OF_ALL and jnp.issubdtype(first.dtype, jnp.inexact)
    if sums and small and window.count >= STACKED_FROM:
        return _stacked(new, monoid, partial, start, hit)
    how = running(monoid, is_backwards(new, window))
    firsts = [_origin(new, partial[k], hit) for k in how.origins]
    carries = [new.carry(atom) for k, atom in enumerate(start) if k not in how.origins]

    def combine(*values: Any) -> list[Any]:
        k, m = len(carries), len(carries) + len(avals)
        old, fresh, rest = values[:k], values[k:m], list(values[m:])
        out = how.join(old, fresh, [rest.pop(0) for _ in firsts])
        return [chosen(rest[0], a, b) if rest else a for a, b in zip(out, old, strict=True)]

    hits = [] if hit is None else [hit]
    outs = new.body.call(combine, *(var for var, _, _ in carries), *partial, *(x for x, _ in firsts), *hits)
    for (_, set_next, _), out in zip(carries, outs, strict=True):
        set_next(out)
    totals: list[Atom] = [final for _, _, final in carries]
    for k, (_, first) in zip(how.origins, firsts, strict=True):
        totals.insert(k, first)
    return totals


def _origin(new: LoopBuilder, atom: Atom, hit: Atom | None) -> tuple[Atom, Atom]:
    """The first value of an atom of the body: as an atom of the body, and as one after the loop."""
    first = new.first(atom) if hit is None else None
    if first is not None:
        return new.const(first), first
    # a carry that changes once
    zero, unset = new.before.call(lambda: [lax.full(atom.aval.shape, 0, atom.aval.dtype), np.bool_(True)])
    (var, set_next, final), (is_unset, set_seen, _) = new.carry(zero), new.carry(unset)

    def take(is_unset: Any, old: Any, value: Any, *hit: Any) -> list[Any]:
        takes = lax.bitwise_and(is_unset, *hit) if hit else is_unset
        return [chosen(takes, value, old), lax.bitwise_and(is_unset, lax.bitwise_not(takes))]

    now, seen = new.body.call(take, is_unset, var, atom, *([] if hit is None else [hit]))
    set_next(now)
    set_seen(seen)
    return now, final


def _stacked(
    new: LoopBuilder, monoid: Monoid, partial: Sequence[Atom], start: Sequence[Atom], hit: Atom | None
) -> list[Atom]:
    """One small partial result for each step, combined after the loop."""
    if hit is not None:
        empty = [new.const(x) for x in start]

        def counted(hit: Any, *values: Any) -> list[Any]:
            k = len(values) // 2
            return [chosen(hit, x, e) for x, e in zip(values[:k], values[k:], strict=True)]

        partial = new.body.call(counted, hit, *partial, *empty)
    rows = [new.y(x) for x in partial]
    return new.after.call(OF_ALL[monoid.name], *rows)


PASSED_ON = frozenset("select_n convert_element_type reshape squeeze broadcast_in_dim".split())


def summed_in_steps(loop: Loop) -> set[Var]:
    """The outputs of a loop that are sums of much more than they hold: stacked partial results, ours or the user's."""
    made = {v: eqn for eqn in loop.body.eqns for v in eqn.outvars}

    def is_sum(x: Atom) -> bool:
        while is_var(x) and x in made and made[x].primitive.name in PASSED_ON:
            x = made[x].invars[-1]
        return is_var(x) and x in made and _sums_up(made[x])

    return {y for y, x in zip(loop.ys, loop.body_ys, strict=True) if loop.length >= STACKED_FROM and is_sum(x)}


def _sums_up(eqn: JaxprEqn) -> bool:
    """Whether an equation, the user's own ones included, sums, and makes much less than each of the values it reads."""
    shapes = [getattr(x.aval, "shape", ()) for x in eqn.invars]
    if len(eqn.outvars) != 1 or any(eqn.outvars[0].aval.size * SMALL > np.prod(shape, dtype=int) for shape in shapes):
        return False
    answers = (along(eqn, {0: Axis(d)}, n) for shape in shapes[:1] for d, n in enumerate(shape) if n > 1)
    return any(isinstance(answer, Reduced) and answer.monoid.name == "add" for answer in answers)


def keep(new: LoopBuilder, atom: Atom, window: Window) -> Var:
    """The values of `atom` at the steps in `window`, stacked `[count, *step]`, without stacking the others.

    They are written to a buffer of `count + 1` rows, the last of which takes what is not wanted: the buffer is
    updated in place, and the row that is written in vain stays in the cache.
    """
    aval = strong(atom.aval)
    rows = window.count + 1
    (buffer,) = new.before.call(lambda: lax.full((rows, *aval.shape), 0, aval.dtype))
    var, set_next, final = new.carry(buffer)

    def write(buffer: Any, value: Any, t: Any) -> Any:
        row = _row(t, window)
        return lax.dynamic_update_index_in_dim(buffer, lax.expand_dims(value, [0]), row, 0)

    (out,) = new.body.call(write, var, atom, new.index())
    set_next(out)
    (kept,) = new.after.call(lambda b: lax.slice_in_dim(b, 0, window.count), final)
    return kept  # type: ignore[return-value]


def _row(t: Any, window: Window) -> Any:
    row = position(t, window, window.count + 1)
    return lax.select(in_window(t, window), row, np.int32(window.count))


def is_hit(new: LoopBuilder, window: Window) -> Atom | None:
    """Whether the present step is in the window, a boolean of the body; None when every step is."""
    if window.count == new.length:
        return None
    (hit,) = new.body.call(lambda t: in_window(t, window), new.index())
    return hit


def is_backwards(new: LoopBuilder, window: Window) -> bool:
    """Whether the steps come in the order of falling places within the window."""
    return new.reverse != (window.stride < 0)


def chosen(hit: Any, a: Any, b: Any) -> Any:
    """`a` where the boolean scalar `hit` is true, else `b`."""
    return lax.select(lax.broadcast(hit, a.shape) if a.ndim else hit, a, b)
