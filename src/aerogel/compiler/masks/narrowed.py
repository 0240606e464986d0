"""Loops whose steps leave out what a mask empties: of causal attention, the keys behind the queries of a block.

The axis that the mask runs along (*columns*) is followed through a step. Outside of the columns that a step sees,
everything on the way to a sum must be what adds nothing to it; then the step is the same on the columns that it sees.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis, take_block
from ..loop import Loop, LoopBuilder
from ..program import Builder, is_var, substitute
from .outside import check_outside
from .stretches import Stretch
from .through import Through, Whole, through
from .visible import Known


def columns_of(loop: Loop, seed: Var, dim: int, stretches: Sequence[Stretch], steps: Sequence[Known]) -> Through:
    """The columns that stand in a dimension of a value of a loop's body, if stretches may leave some of them out.

    Raises:
        Whole: something in a step, or outside of the loop, needs all of them.
    """
    carries = dict(zip(loop.body_carry, loop.next_carry, strict=True))
    columns = through(loop.body, seed, Axis(dim), list(carries.items()))
    if any(is_var(y) and y in columns.where for y in loop.body_ys):
        raise Whole("each step stores all of them")
    for one in stretches:
        left = np.ones(columns.length, bool)
        left[one.low : one.high] = False
        for at in range(one.first, one.last) if left.any() else ():
            check_outside(columns, steps[at], left, carries)
    return columns


def in_stretches(loop: Loop, columns: Through, stretches: Sequence[Stretch]) -> tuple[list[JaxprEqn], dict[Var, Atom]]:
    """Loops one after the other in place of one, each over its own columns; and what stands for its results."""
    eqns: list[JaxprEqn] = []
    carries: list[Atom] = list(loop.init)
    stacked: dict[Stretch, list[Var]] = {}
    for one in reversed(stretches) if loop.reverse else stretches:
        made, carries, stacked[one] = _stretch(loop, columns, one, carries)
        eqns += made
    end = Builder(loop.eqn)
    results: dict[Var, Atom] = dict(zip(loop.finals, carries, strict=True))
    for k, y in enumerate(loop.ys):
        (results[y],) = end.call(lambda *xs: lax.concatenate(xs, 0), *(stacked[one][k] for one in stretches))
    results = {v: end.as_weak_as(v, atom) for v, atom in results.items()}
    return [*eqns, *end.eqns], results


def _stretch(
    loop: Loop, columns: Through, one: Stretch, carries: Sequence[Atom]
) -> tuple[list[JaxprEqn], list[Atom], list[Var]]:
    """The steps of a stretch: their equations, the carries behind them, and what they stack."""
    size = one.high - one.low
    new = LoopBuilder(loop.eqn, one.last - one.first, loop.reverse)

    def cut(x: Atom, v: Var, more: int = 0) -> Atom:
        """The columns of the stretch of what stands for `v`, with `more` dimensions in front."""
        axis = columns.where.get(v)
        if axis is None or size == columns.length:
            return x
        at = Axis(axis.dim + more, axis.outer, axis.inner)
        return new.before.call(lambda x: take_block(x, at, columns.length, one.low, size), x)[0]

    env: dict[Var, Atom] = {}
    for v, x in zip(loop.body_consts, loop.consts, strict=True):
        env[v] = new.const(cut(x, v))
    for v, x in zip(loop.body_xs, loop.xs, strict=True):
        (steps,) = new.before.call(partial(lax.slice_in_dim, start_index=one.first, limit_index=one.last), x)
        inside = cut(steps, v, 1)
        assert is_var(inside)
        env[v] = new.x(inside)
    ends: list[Callable[[Atom], None]] = []
    finals: list[Atom] = []
    for v, x in zip(loop.body_carry, carries, strict=True):
        env[v], set_next, final = new.carry(cut(x, v))
        ends.append(set_next)
        finals.append(final)
    columns.cut(new.body, env, one.low, size)
    for set_next, after in zip(ends, loop.next_carry, strict=True):
        set_next(substitute(after, env))
    ys = [new.y(substitute(y, env)) for y in loop.body_ys]
    behind: list[Atom] = []
    for v, x, final in zip(loop.body_carry, carries, finals, strict=True):
        axis = columns.where.get(v)
        if axis is not None and size != columns.length:
            behind += new.after.call(_putting(axis, columns.length, one.low, size), x, final)
        else:
            behind.append(final)
    return new.equations(), behind, ys


def _putting(axis: Axis, length: int, low: int, size: int) -> Callable[[Any, Any], Any]:
    """What puts columns back."""

    def put(x: Any, part: Any) -> Any:
        split = (*x.shape[: axis.dim], axis.outer, length, axis.inner, *x.shape[axis.dim + 1 :])
        own = (*split[: axis.dim + 1], size, *split[axis.dim + 2 :])
        whole = lax.dynamic_update_slice_in_dim(lax.reshape(x, split), lax.reshape(part, own), low, axis.dim + 1)
        return lax.reshape(whole, x.shape)

    return put
