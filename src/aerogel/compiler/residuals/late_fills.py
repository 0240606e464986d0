"""What a loop of the backward part begins with, filled when that begins.

A loop adds up from zeros. They depend on nothing, so XLA fills them before anything else, and holds them until the loop
runs: beside all that the forward part keeps. See docs/explanation/late-writes.md.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, DropVar, Jaxpr, JaxprEqn, Literal, Var

from ..cost import nbytes
from ..level import Level
from ..program import Builder, is_var, rename, with_equations
from ..record import record
from .late_writes import APART, behind_all, stands_for_all

LEAST_BYTES = 1 << 16  # of what is filled
LOOPS = ("scan", "while")
VIEWS = ("transpose", "reshape")  # of what is the same everywhere


@record
class LateFill:
    """Operands of a loop that are filled when another one is there.

    Attributes:
        place: of the loop.
        fills: the number that each holds everywhere.
        wait: the operand that is there last.
    """

    place: int
    fills: dict[Var, Literal]
    wait: Var

    @property
    def bytes(self) -> int:
        """Of all that is filled."""
        return sum(nbytes(x.aval) for x in self.fills)


def late_fills(level: Level) -> list[LateFill]:
    """Those of loops that wait for another kernel: what that holds, it holds beside them."""
    fills = {i: found for i, eqn in enumerate(level.eqns) if (found := _fills(level, eqn))}
    kernels = _kernels_behind(level.jaxpr) if fills else {}
    found = []
    for place, values in fills.items():
        made = [x for x in level.eqns[place].invars if is_var(x) and kernels.get(x) and stands_for_all(x.aval)]
        if made:
            wait = max(made, key=lambda x: (kernels[x], level.made_by[x]))
            found.append(LateFill(place, values, wait))
    return found


def _fills(level: Level, eqn: JaxprEqn) -> dict[Var, Literal]:
    """The large operands of a loop that are one number everywhere."""
    found: dict[Var, Literal] = {}
    for x in eqn.invars if eqn.primitive.name in LOOPS else ():
        if is_var(x) and isinstance(x.aval, _jax.ShapedArray) and nbytes(x.aval) >= LEAST_BYTES:
            number = _filled_with(level, x)
            if number is not None and jnp.issubdtype(x.aval.dtype, jnp.number) and not x.aval.weak_type:
                found[x] = number
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
        builder, env = Builder(eqn), dict[Var, Atom]()
        for x, number in at[place].fills.items():
            (env[x],) = builder.call(lambda v, wait, x=x: _filled(v, wait, x.aval), number, at[place].wait)
        eqns += [*builder.eqns, rename(eqn, env)]
    return with_equations(level.jaxpr, eqns)


def _filled(number: Any, wait: Any, aval: Any) -> Any:
    return lax.broadcast(behind_all(lax.convert_element_type(number, aval.dtype), wait), aval.shape)
