"""A selection between a value and itself is the value.

`vmap` of a `cond` gives each branch its operands by a selection: as they are where the branch is taken, and without a
gradient elsewhere. What all lanes share, the weights that a branch closes over, is repeated for each lane for that.
"""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..level import Level
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, is_var, rename, substitute, where, with_equations
from ..report import Decision

NAME = "equal-cases"


@dataclass(frozen=True)
class EqualCases:
    """The pass. It waits for differentiation: before it, the cases have different gradients."""

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without such selections, and a decision for each."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    if all(eqn.primitive.name != "select_n" for eqn in jaxpr.eqns):
        return jaxpr
    level, env, eqns = Level(jaxpr), dict[Var, Atom](), list[JaxprEqn]()
    for eqn in jaxpr.eqns:
        eqn = rename(eqn, env)
        same = _only_case(level, eqn) if eqn.primitive.name == "select_n" else None
        if same is None:
            eqns.append(eqn)
        else:
            env[eqn.outvars[0]] = same
            what = "a selection between a value and the same value without its gradient is the value"
            decisions.append(Decision(NAME, what, where(eqn), True, f"of {same.aval.size} entries"))
    return drop_dead(with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])) if env else jaxpr


def _only_case(level: Level, select: JaxprEqn) -> Var | None:
    """The value that all cases of a selection are; None if they differ."""
    first, *others = (_stopped(level, x) for x in select.invars[1:])
    if not is_var(first) or any(x is not first for x in others) or first.aval != select.outvars[0].aval:
        return None
    return first


def _stopped(level: Level, x: Atom) -> Atom:
    """What a value is without the wall for its gradient."""
    eqn = level.maker(x)
    return eqn.invars[0] if eqn is not None and eqn.primitive.name == "stop_gradient" else x
