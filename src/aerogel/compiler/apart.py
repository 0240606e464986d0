"""Some equations of a level by themselves: what they read, and what they cost."""

from collections.abc import Sequence

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from .cost import Cost, Machine, jaxpr_seconds
from .cost.program import jaxpr_cost
from .level import Edit, Level
from .program import is_var
from .record import record


@record
class Priced:
    """Edits that are made together, and what both forms are predicted to take."""

    edits: tuple[Edit, ...]
    seconds_before: float
    seconds_after: float


def inputs_of(eqns: Sequence[JaxprEqn], results: Sequence[Atom]) -> dict[Var, None]:
    """What equations, or results beside them, read and the equations do not make; in order."""
    made = {v for eqn in eqns for v in eqn.outvars}
    read = [x for eqn in eqns for x in eqn.invars if is_var(x)] + [x for x in results if is_var(x)]
    return dict.fromkeys(x for x in read if x not in made)


def cost_of(level: Level, eqns: Sequence[JaxprEqn], results: Sequence[Atom], machine: Machine) -> Cost:
    """What it costs to make `results` by equations of a level, or by new ones on what it holds."""
    jaxpr = _jax.new_jaxpr(level.jaxpr, list(inputs_of(eqns, results)), list(results), list(eqns), ())
    seconds = jaxpr_seconds(jaxpr, machine)  # first: the cost is found on the way
    cost = jaxpr_cost(jaxpr)
    return Cost(cost.flops, cost.bytes_moved, cost.peak_bytes, seconds)
