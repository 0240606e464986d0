"""Counted loops: a `while` whose condition counts its steps to a number is a `scan`, which the other passes know.

`while_loop(lambda s: s[0] < 50, ...)` says how often it runs as much as `fori_loop(0, 50, ...)` does.
"""

from typing import ClassVar

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn

from ..exactness import Exactness
from ..levels import rewrite_levels
from ..loops.trips import exact_trips
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..record import record
from ..report import Decision
from ..streams.streaming import scan_like

NAME = "counted-loops"


@record
class CountedLoops:
    """The pass. Bound: what it makes of a loop is none of its loops."""

    # JAX has no reverse derivative of a `while`: whoever asks for one is told so, with and without Aerogel.
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops as scans, and a decision for each."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    scans: dict[int, JaxprEqn] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        steps = exact_trips(eqn) if _may_be_rebuilt(eqn) else None
        if steps:
            scans[place] = _scan(eqn, steps)
            what = f"a `while` of {steps} steps is a `scan`"
            decisions.append(Decision(NAME, what, where(eqn), True, "its condition counts them, and asks nothing else"))
    return with_equations(jaxpr, [scans.get(k, eqn) for k, eqn in enumerate(jaxpr.eqns)]) if scans else jaxpr


def _may_be_rebuilt(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "while" or eqn.effects or any(_jax.explicit_mesh(v.aval) for v in eqn.outvars):
        return False
    return not eqn.params["cond_jaxpr"].consts and not eqn.params["body_jaxpr"].consts


def _scan(eqn: JaxprEqn, steps: int) -> JaxprEqn:
    p, like = eqn.params, scan_like(eqn)
    consts, body = p["body_nconsts"], ClosedJaxpr(p["body_jaxpr"].jaxpr, ())
    params = _jax.scan_params(like.params | {"length": steps, "reverse": False}, body, consts, len(eqn.outvars))
    return like.replace(invars=eqn.invars[p["cond_nconsts"] :], outvars=eqn.outvars, params=params)
