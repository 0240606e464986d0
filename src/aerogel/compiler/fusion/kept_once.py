"""The step of a loop that computes chosen values once.

XLA's CPU backend fuses elementwise work into everything that reads it, and repeats it there (see `once.py`).

The remedy is a second operand that XLA cannot see through: the value is what the loop carries on, unless the number of
the step is negative. (Barriers are gone before XLA's CPU backend fuses; a row of a buffer at an unknown place is fused
like any other value.)
"""

from collections.abc import Iterable

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, DropVar, JaxprEqn, Var

from ..loop import Loop, LoopBuilder
from ..program import copy_equation, is_var, substitute
from .accumulate import chosen


def computed_once(loop: Loop, values: Iterable[Var]) -> list[JaxprEqn]:
    """The loop with each of `values` computed once a step, and what prepares it."""
    wanted = set(values)
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
    finals = [_jax.new_var(v.aval) if isinstance(v, DropVar) else v for v in loop.finals]
    carries = [new.keep_carry(init, final) for init, final in zip(loop.init, finals, strict=True)]
    ins: list[Atom] = [
        *map(new.const, loop.consts),
        *(var for var, _ in carries),
        *(new.x(x) for x in loop.xs if is_var(x)),
    ]
    inside = dict(zip(loop.body.invars, ins, strict=True))
    old = {x: inside[c] for x, c in zip(loop.next_carry, loop.body_carry, strict=True) if is_var(x)}
    for eqn in loop.body.eqns:
        new.body.eqns.append(copy_equation(eqn, inside))
        for v in eqn.outvars:
            if v in wanted:
                inside[v] = _kept(new, inside[v], old.get(v))
    outs = [substitute(x, inside) for x in (*loop.next_carry, *loop.body_ys)]
    for (_, set_next), out in zip(carries, outs, strict=False):
        set_next(out)
    for y, out in zip(loop.ys, outs[len(carries) :], strict=True):
        new.y(out, _jax.new_var(y.aval) if isinstance(y, DropVar) else y)
    return new.equations()


def _kept(new: LoopBuilder, value: Atom, old: Atom | None) -> Atom:
    """What stands for `value`: what the loop carries on, `old` being the carry that it is the next value of, if any."""
    set_next = None
    if old is None:
        (zero,) = new.before.call(lambda: lax.full(value.aval.shape, 0, value.aval.dtype))
        old, set_next, _ = new.carry(zero)
    (kept,) = new.body.call(lambda t, v, w: chosen(lax.ge(t, np.int32(0)), v, w), new.index(), value, old)
    if set_next is not None:
        set_next(kept)
    return kept
