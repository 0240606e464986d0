"""A selection between a value and itself is the value.

`vmap` of a `cond` gives each branch its operands by a selection: as they are where the branch is taken, and without a
gradient elsewhere. What all lanes share, the weights that a branch closes over, is repeated for each lane for that.
"""

from typing import ClassVar

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..level import Level
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, is_var, rename, substitute, where, with_equations
from ..record import record
from ..report import Decision

NAME = "equal-cases"
ARRANGING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose")
LONGEST_CHAIN = 30


@record
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
        same = _only_case(level, eqn, env) if eqn.primitive.name == "select_n" else None
        if same is None:
            eqns.append(eqn)
        else:
            env[eqn.outvars[0]] = same
            what = "a selection between a value and the same value without its gradient is the value"
            decisions.append(Decision(NAME, what, where(eqn), True, f"of {same.aval.size} entries"))
    return drop_dead(with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])) if env else jaxpr


def _only_case(level: Level, select: JaxprEqn, env: dict[Var, Atom]) -> Var | None:
    """The value that all cases of a selection are; None if they differ."""
    cases = [_Free(level, env).of(x) for x in select.invars[1:]]
    source, way, _ = cases[0]
    if not is_var(source) or any(one is not source or other != way for one, other, _ in cases):
        return None
    fewest = min(range(len(cases)), key=lambda k: cases[k][2])
    value = source if not way else select.invars[1 + fewest]
    return value if is_var(value) and value.aval == select.outvars[0].aval else None


@record
class _Free:
    """What a value is without the walls for its gradient: a source, how that is arranged, and how many walls."""

    level: Level
    env: dict[Var, Atom]

    def of(self, x: Atom) -> tuple[Atom, tuple[object, ...], int]:
        """All three."""
        way: list[object] = []
        walls = 0
        for _ in range(LONGEST_CHAIN):
            x = substitute(x, self.env)
            eqn = self.level.maker(x)
            if eqn is None or eqn.primitive.name not in (*ARRANGING, "stop_gradient"):
                break
            if eqn.primitive.name == "stop_gradient":
                walls += 1
            else:
                way.append((eqn.primitive.name, *(str(p) for p in sorted(eqn.params.items()))))
            x = eqn.invars[0]
        return x, tuple(way), walls
