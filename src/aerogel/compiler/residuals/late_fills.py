"""What a loop of the backward part begins with, filled when that begins.

A loop adds up from zeros. They depend on nothing, so XLA fills them before anything else, and holds them until the loop
runs: beside all that the forward part keeps. The same holds for what a `scan` stacks its outputs in, which is zeros
before the first step: they become a carry that each step writes its own row of. See docs/explanation/late-writes.md.
"""

from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Literal, Var

from ..cost import nbytes
from ..level import Level
from ..loop import Loop, as_loop
from ..loop_copy import LoopCopy
from ..program import Builder, copy_equation, is_var, rename, substitute, with_equations
from ..record import record
from .late_writes import APART, behind_all, stands_for_all

LEAST_BYTES = 1 << 16  # of what is filled
LOOPS = ("scan", "while")
VIEWS = ("transpose", "reshape")  # of what is the same everywhere
SAME_MEMORY = ("reshape", "squeeze", "expand_dims", "transpose")  # what they make is where they read it
LEAST_SHARE = 0.5  # of the largest that is filled


@record
class LateFill:
    """Operands of a loop that are filled when another one is there.

    Attributes:
        place: of the loop.
        fills: the number that each holds everywhere.
        stacks: outputs of all steps that take memory when the loop begins.
        wait: the operand that is there last.
    """

    place: int
    fills: dict[Var, Literal]
    stacks: tuple[Var, ...]
    wait: Var

    @property
    def bytes(self) -> int:
        """Of all that is filled."""
        return sum(nbytes(x.aval) for x in (*self.fills, *self.stacks))


def late_fills(level: Level) -> list[LateFill]:
    """Those of loops that wait for another kernel: what that holds, it holds beside them."""
    begun = {i: found for i, eqn in enumerate(level.eqns) if any(found := (_fills(level, eqn), _stacks(eqn)))}
    kernels = _kernels_behind(level.jaxpr) if begun else {}
    found = []
    for place, (fills, stacks) in begun.items():
        made = [x for x in level.eqns[place].invars if is_var(x) and kernels.get(x) and stands_for_all(x.aval)]
        least = LEAST_SHARE * max(nbytes(x.aval) for x in (*fills, *stacks))
        if made and _is_freed(level, place, least):
            wait = max(made, key=lambda x: (kernels[x], level.made_by[x]))
            found.append(LateFill(place, fills, stacks, wait))
    return found


def _stacks(eqn: JaxprEqn) -> tuple[Var, ...]:
    """The large outputs of all steps of a scan."""
    loop = as_loop(eqn)
    if loop is None or loop.length < 2:
        return ()
    return tuple(y for y in loop.ys if _is_number(y) and nbytes(y.aval) >= LEAST_BYTES and not isinstance(y, DropVar))


def _is_freed(level: Level, place: int, least: float) -> bool:
    """Whether kernels made so many bytes of a value that nobody needs from this place on: else nothing is to be gained.

    The gradient of an LSTM, batch 64 and width 256, whose steps add up 2 MB, held 1 % less and took 1.09 of the time.
    """
    made = (v for v, k in level.made_by.items() if k < place and level.eqns[k].primitive.name in APART)
    return any(_is_number(v) and nbytes(v.aval) >= least and _last_read(level, v) < place for v in made)


def _is_number(x: Var) -> bool:
    return isinstance(x.aval, _jax.ShapedArray) and jnp.issubdtype(x.aval.dtype, jnp.number)


def _last_read(level: Level, value: Var) -> int:
    """The place of the last equation that reads a value, or a view of it."""
    last = 0
    for k in level.readers(value):
        if k < 0:
            return len(level.eqns)
        eqn = level.eqns[k]
        last = max(last, k, *(_last_read(level, v) for v in eqn.outvars if eqn.primitive.name in SAME_MEMORY))
    return last


def _fills(level: Level, eqn: JaxprEqn) -> dict[Var, Literal]:
    """The large operands of a loop that are one number everywhere."""
    found: dict[Var, Literal] = {}
    for x in eqn.invars if eqn.primitive.name in LOOPS else ():
        if is_var(x) and _is_number(x) and nbytes(x.aval) >= LEAST_BYTES and not x.aval.weak_type:
            number = _filled_with(level, x)
            found |= {} if number is None else {x: number}
    return found


def _filled_with(level: Level, x: Atom) -> Literal | None:
    maker = level.maker(x)
    while maker is not None and maker.primitive.name in VIEWS:
        maker = level.maker(maker.invars[0])
    if maker is None or maker.primitive.name != "broadcast_in_dim" or is_var(maker.invars[0]):
        return None
    return maker.invars[0] if not maker.invars[0].aval.shape else None


def _kernels_behind(jaxpr: Jaxpr) -> dict[Var, int]:
    """Of how many kernels, one computed from the other, a value is made."""
    found: dict[Var, int] = {}
    for eqn in jaxpr.eqns:
        behind = max((found.get(x, 0) for x in eqn.invars if is_var(x)), default=0) + (eqn.primitive.name in APART)
        found.update((v, behind) for v in eqn.outvars if behind and not isinstance(v, DropVar))
    return found


def filled_late(level: Level, chosen: list[LateFill]) -> Jaxpr:
    """The level in which these are filled when their loop begins."""
    at = {one.place: one for one in chosen}
    eqns: list[JaxprEqn] = []
    for place, eqn in enumerate(level.eqns):
        if place not in at:
            eqns.append(eqn)
            continue
        builder, env, wait = Builder(eqn), dict[Var, Atom](), at[place].wait
        for x, number in at[place].fills.items():
            (env[x],) = builder.call(lambda v, wait, x=x: _filled(v, wait, x.aval), number, wait)
        filled = rename(eqn, env)
        rest = _written_late(Loop(filled), at[place].stacks, wait) if at[place].stacks else [filled]
        eqns += [*builder.eqns, *rest]
    return with_equations(level.jaxpr, eqns)


def _written_late(loop: Loop, stacks: Collection[Var], wait: Var) -> list[JaxprEqn]:
    """A loop whose steps write rows of these outputs, which are filled when it begins."""
    copy = LoopCopy(loop)
    new, env = copy.new, copy.env
    new.body.eqns += [copy_equation(eqn, env) for eqn in loop.body.eqns]
    copy.finish(without=stacks)
    for y, row in zip(loop.ys, loop.body_ys, strict=True):
        if y in stacks:
            (start,) = new.before.call(lambda wait, y=y: _filled(0, wait, y.aval), wait)
            rows, set_next = new.keep_carry(start, y)
            set_next(*new.body.call(_with_row, rows, substitute(row, env), new.index()))
    return new.equations()


def _with_row(rows: Any, row: Any, index: Any) -> Any:
    return lax.dynamic_update_index_in_dim(rows, row, index, 0)


def _filled(number: Any, wait: Any, aval: Any) -> Any:
    return lax.broadcast(behind_all(lax.convert_element_type(number, aval.dtype), wait), aval.shape)
