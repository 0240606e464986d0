"""A sum of a value and of what is scattered into zeros: XLA scatters into the value, and makes no zeros.

The gradient of a mean over entries that were picked is such a sum. Who counts what is held at once, or has something
wait for what was scattered, is to see what XLA makes of it.
"""

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..known.picks import is_zeros
from ..level import Level
from ..program import is_var, with_equations

SUMS = ("add", "add_any")


def scattered_onto(jaxpr: Jaxpr) -> Jaxpr:
    """The level in which such sums are scatters; the same object if there are none."""
    if all(eqn.primitive.name != "scatter-add" for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(jaxpr)
    sums: dict[int, JaxprEqn] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name not in SUMS:
            continue
        scatter = next((x for x in eqn.invars if is_var(x) and _is_scattered(level, x)), None)
        if scatter is None:
            continue
        made = level.made_by[scatter]
        other = eqn.invars[eqn.invars[0] is scatter]
        if other is scatter or made in sums or not is_var(other):
            continue
        if other.aval == scatter.aval == eqn.outvars[0].aval:
            into = jaxpr.eqns[made]
            sums[made] = into
            sums[place] = into.replace(invars=[other, *into.invars[1:]], outvars=eqn.outvars)
    eqns = [sums.get(k, eqn) for k, eqn in enumerate(jaxpr.eqns) if sums.get(k) is not eqn]
    return with_equations(jaxpr, eqns) if sums else jaxpr


def _is_scattered(level: Level, x: Var) -> bool:
    """Whether a value is scattered into zeros, by addition, for one reader alone."""
    eqn = level.maker(x)
    if eqn is None or eqn.primitive.name != "scatter-add" or len(level.readers(x)) != 1:
        return False
    return is_zeros(level, eqn.invars[0])
