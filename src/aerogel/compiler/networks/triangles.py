"""Products with triangles of ones, `tri(n) @ x`: running sums, of n additions in place of n * n.

The triangle is not seen by its name: a comparison of two counters is one, whoever wrote it (`records.Below`).
"""

from functools import partial
from typing import Any

from jax import lax

from aerogel._jax import JaxprEqn

from ..apart import Priced
from ..cost import Machine, equation_seconds
from ..known.records import Below, Facts, the
from ..level import Edit, Level
from ..program import Builder

# Running sums in fewer bits are rounded at each step.
FLOATS = frozenset("float32 float64 complex64 complex128".split())
MARGIN = 0.8
LEAST_SECONDS = 2e-6
# The model prices JAX's cumulative sums. Those by rows, which rules write in the end, took 0.1 to 0.35 of their time
# (docs/reference/catalogue-order.md); without these rules 0.8 of a product's time was still not reached.
BY_ROWS = 0.35


def running_sums(level: Level, facts: Facts, machine: Machine) -> list[Priced]:
    """An edit for each product with a triangle that is cheaper as a running sum, and what both forms take."""
    if not facts.hold(Below):
        return []
    found: list[Priced] = []
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name != "dot_general" or eqn.effects or eqn.params.get("out_sharding") is not None:
            continue
        made = next((one for side in (0, 1) if (one := _made(facts, eqn, side)) is not None), None)
        if made is None:
            continue
        rows = BY_ROWS if machine.name == "cpu" else 1.0
        was = equation_seconds(eqn, machine)
        now = sum(equation_seconds(new, machine) for new in made.eqns if new.primitive.name == "cumsum") * rows
        if now <= MARGIN * was and was - now >= LEAST_SECONDS:
            here = frozenset({place})
            edit = Edit(place, here, made.eqns, {eqn.outvars[0]: made.eqns[-1].outvars[0]}, here)
            found.append(Priced((edit,), was, now))
    return found


def _made(facts: Facts, eqn: JaxprEqn, side: int) -> Builder | None:
    """The running sum, if the operand on a side is a triangle; the last equation makes the result."""
    (contract, batch), (out,) = eqn.params["dimension_numbers"], eqn.outvars
    triangle, y = eqn.invars[side], eqn.invars[1 - side]
    below = the(Below, facts.of(triangle))
    shape = triangle.aval.shape
    if below is None or below.by not in (0, 1) or len(shape) != 2 or shape[0] != shape[1] or not out.aval.size:
        return None
    if batch[0] or len(contract[side]) != 1 or shape[0] < 2 or str(y.aval.dtype) not in FLOATS:
        return None
    (along,), (summed,) = contract[1 - side], contract[side]
    builder = Builder(eqn)
    first = 0 if side == 0 else len(out.aval.shape) - 1
    run = partial(_running, along=along, backwards=summed == below.a, strictly=bool(below.by), to=first)
    (result,) = builder.call(run, y)
    return builder if result.aval == out.aval and builder.eqns and result is builder.eqns[-1].outvars[0] else None


def _running(y: Any, along: int, backwards: bool, strictly: bool, to: int) -> Any:
    """Sums of all entries up to each place, or from it on, itself left out if `strictly`; moved to dimension `to`."""
    if strictly:
        n = y.shape[along]
        y = lax.slice_in_dim(y, 1, n, axis=along) if backwards else lax.slice_in_dim(y, 0, n - 1, axis=along)
    y = lax.cumsum(y, axis=along, reverse=backwards)
    if strictly:
        sides = [(0, 0, 0)] * y.ndim
        sides[along] = (0, 1, 0) if backwards else (1, 0, 0)
        y = lax.pad(y, lax.full((), 0, y.dtype), sides)
    order = [d for d in range(y.ndim) if d != along]
    order.insert(to, along)
    return y if order == list(range(y.ndim)) else lax.transpose(y, order)
