"""Running totals over the steps of a loop, `jnp.cumsum(ys, 0)`, as a loop of their own: it joins that one.

On CPU the total of rows of some size is faster so than by XLA's own cumulative operations, also where it stays apart.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel._jax import JaxprEqn, explicit_mesh

from ..axes.accumulate import accumulator_dtype
from ..axes.monoid import highest, lowest
from ..level import Level
from ..loop import as_loop
from ..program import Builder
from .parts import loop_behind

SMALLEST_ROW = 1024
TOTALS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "cumsum": (lax.add, lambda dtype: 0),
    "cumprod": (lax.mul, lambda dtype: 1),
    "cummax": (lax.max, lowest),
    "cummin": (lax.min, highest),
}


def is_running(level: Level, eqn: JaxprEqn) -> bool:
    """Whether an equation is a running total beside a loop, in the order in which its steps run.

    Over what a loop stacks, or for a loop to read: the gradient of the first is the second.
    """
    if eqn.primitive.name not in TOTALS or eqn.params["axis"] != 0 or explicit_mesh(eqn.outvars[0].aval):
        return False
    (out,), (length, *row) = eqn.outvars, eqn.outvars[0].aval.shape
    if out.aval.size < SMALLEST_ROW * length or not row:
        return False
    readers = (as_loop(level.eqns[k]) for k in level.readers(out) if k != -1)
    loops = [loop_behind(level, eqn.invars[0]), *(loop for loop in readers if loop is not None and out in loop.xs)]
    return any(loop and loop.length == length and loop.reverse == eqn.params["reverse"] for loop in loops)


def rounds(eqn: JaxprEqn) -> bool:
    """Whether the order of summation shows in a running total."""
    return eqn.primitive.name in ("cumsum", "cumprod") and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)


def as_scan(eqn: JaxprEqn) -> list[JaxprEqn]:
    """A running total over the leading dimension as a scan."""
    combine, identity = TOTALS[eqn.primitive.name]
    aval = eqn.outvars[0].aval
    wide = accumulator_dtype(aval.dtype) if rounds(eqn) else aval.dtype

    def body(total: Any, x: Any) -> tuple[Any, Any]:
        total = combine(total, lax.convert_element_type(x, wide))
        return total, lax.convert_element_type(total, aval.dtype)

    def run(x: Any) -> Any:
        start = lax.full(aval.shape[1:], identity(wide), wide)
        return lax.scan(body, start, x, reverse=eqn.params["reverse"])[1]

    builder = Builder(eqn)
    (out,) = builder.call(run, eqn.invars[0])
    scan = builder.eqns[-1]
    outvars = [eqn.outvars[0] if v is out else v for v in scan.outvars]
    return [*builder.eqns[:-1], scan.replace(outvars=outvars)]
