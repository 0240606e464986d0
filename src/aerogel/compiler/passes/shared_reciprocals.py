"""Shared reciprocals: negative powers of one array are powers of one reciprocal.

`r**-12 - r**-6` divides twice, and its gradient four times; XLA takes each power of its own array for dear and keeps
it where two kernels read it. `i = 1 / r**6` is divided once, and `i * i - i` are products. See
docs/explanation/shared-reciprocals.md.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Builder, Program, is_var, where
from ..record import record
from ..report import Decision

NAME = "shared-reciprocals"
FEWEST = 2  # divisions
# Of one number, or a few, a division is no dearer than what stands around it.
FEWEST_ENTRIES = 16
# Of a larger power the rounding grows with it, and float32 holds it near one alone.
LARGEST_POWER = 32
# The divisions of an array that is smaller than this part of others cost little beside these, and what is shared may be
# a kernel more (500 rows of 200 over their norms, value and gradient: 1.05 of plain JAX's time, 0.92 without).
SMALLEST_PART = 8


@record
class SharedReciprocals:
    """The pass. Bound: each equation is looked at once."""

    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with one division for each such array, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, partial(_level, decisions=decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    divided: dict[Var, list[tuple[int, int, Any]]] = defaultdict(list)
    for place, eqn in enumerate(jaxpr.eqns):
        found = _divided(eqn)
        if found is not None:
            x, power, over = found
            divided[x].append((place, power, over))
    level, edits = Level(jaxpr), list[Edit]()
    largest = max((getattr(v.aval, "size", 0) for eqn in jaxpr.eqns for v in eqn.outvars), default=0)
    for sites in divided.values():
        kinds = {(power, float(over)) for _, power, over in sites}
        if len(kinds) < FEWEST:
            continue
        eqn = level.eqns[sites[0][0]]
        powers = sorted({power for _, power, _ in sites})
        what = f"powers of {', '.join(f'-{power}' for power in powers)} share one division"
        if SMALLEST_PART * eqn.outvars[0].aval.size < largest:
            reason = f"its {eqn.outvars[0].aval.size:,} divisions cost little beside {largest:,} entries"
            decisions.append(Decision(NAME, what, where(eqn), False, reason))
            continue
        edits.append(_edit(level, sites))
        reason = f"{len(kinds) - 1} of {len(kinds)} divisions of each entry are products"
        decisions.append(Decision(NAME, what, where(eqn), True, reason, exactness=Exactness.REASSOCIATES))
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _divided(eqn: JaxprEqn) -> tuple[Var, int, Any] | None:
    """The array, the power and the number over it, if an equation divides by a power of an array of floats."""
    name = eqn.primitive.name
    if name == "integer_pow" and -LARGEST_POWER <= eqn.params["y"] < 0:
        x, power, over = eqn.invars[0], -eqn.params["y"], 1.0
    elif name == "div" and isinstance(eqn.invars[0], Literal) and not np.ndim(eqn.invars[0].val):
        x, power, over = eqn.invars[1], 1, eqn.invars[0].val
        # The reciprocal of a huge number is 0: what is over it must not bring it back.
        if not abs(float(over)) <= 1:
            return None
    else:
        return None
    if not is_var(x) or x.aval.size < FEWEST_ENTRIES or x.aval.shape != eqn.outvars[0].aval.shape:
        return None
    # Numbers of 16 bits are rounded in each product.
    wide = jnp.issubdtype(x.aval.dtype, jnp.floating) and x.aval.dtype.itemsize >= 4
    return (x, power, over) if wide else None


def _edit(level: Level, sites: Sequence[tuple[int, int, Any]]) -> Edit:
    # The greatest power that all are powers of: that of more factors is rounded as often as what stood here.
    root = math.gcd(*(power for _, power, _ in sites))
    first = min(place for place, *_ in sites)
    builder = Builder(level.eqns[first])
    x = level.eqns[first].invars[-1]
    powers = sorted({power // root for _, power, _ in sites})
    made = builder.call(partial(_powers, root=root, powers=powers), x)
    results = dict[Var, Atom]()
    for place, power, over in sites:
        (out,) = level.eqns[place].outvars
        one = made[powers.index(power // root)]
        if over != 1:
            (one,) = builder.call(lambda y, c=float(over): c * y, one)
        results[out] = builder.as_weak_as(out, one)
    gone = frozenset(place for place, *_ in sites)
    return Edit(first, gone, builder.eqns, results, gone)


def _powers(x: Any, *, root: int, powers: Sequence[int]) -> list[Any]:
    """Powers of `1 / x**root`: each by squares, and what one needs serves the others."""
    made = {1: 1 / lax.integer_pow(x, root)}

    def power(n: int) -> Any:
        if n not in made:
            made[n] = power(n - 1) * made[1] if n % 2 else lax.square(power(n // 2))
        return made[n]

    return [power(n) for n in powers]
