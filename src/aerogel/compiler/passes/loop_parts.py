"""What stands between a loop and its reductions: concatenations are taken part by part, running totals are loops.

`concatenate([x0[None], ys]).mean(0)` and `cumsum(ys, 0).max(0)` need no array of all steps.
"""

from dataclasses import dataclass

from aerogel._jax import Jaxpr

from ..axes import No
from ..cost import nbytes
from ..exactness import Exactness
from ..level import Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..parts import joins_a_loop, take_apart
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..report import Decision
from ..totals import as_scan, is_running, rounds
from ..views import with_slices

NAME = "loop-parts"
# Smaller concatenations are left: nothing to gain.
SMALLEST = 16_384  # elements


@dataclass(frozen=True)
class LoopParts:
    """The pass. Bound: each round takes away at least one concatenation of a level, and makes none."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without the concatenations that are not needed as a whole, and a decision for each."""
        decisions: list[Decision] = []
        if Exactness.REASSOCIATES not in context.allowed or context.before_differentiation:
            return program, []
        cpu = context.platform == "cpu"
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions, cpu)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision], totals: bool) -> Jaxpr:
    left: set[object] = set()
    if totals:
        jaxpr = _with_loops(jaxpr, decisions)
    while True:
        level = Level(jaxpr)
        for place, eqn in enumerate(level.eqns):
            out = eqn.outvars[0] if eqn.outvars else None
            if out in left or not joins_a_loop(level, eqn) or eqn.outvars[0].aval.size < SMALLEST:
                continue
            left.add(out)
            found = take_apart(level, place)
            what = "a concatenation over time is taken part by part"
            if isinstance(found, No):
                decisions.append(Decision(NAME, what, where(eqn), False, found.reason))
                continue
            jaxpr = drop_dead(with_slices(apply_edits(jaxpr, [found])[0]))
            size = nbytes(eqn.outvars[0].aval)
            reason = "what is read of it needs no whole"
            decisions.append(Decision(NAME, what, where(eqn), True, reason, 0, 2 * size, size, Exactness.REASSOCIATES))
            break
        else:
            return jaxpr


def _with_loops(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    """Running totals beside loops as loops."""
    level = Level(jaxpr)
    eqns = []
    for eqn in level.eqns:
        if not is_running(level, eqn):
            eqns.append(eqn)
            continue
        eqns += as_scan(eqn)
        exactness = Exactness.REASSOCIATES if rounds(eqn) else Exactness.BITWISE
        what = f"`{eqn.primitive.name}` over the steps of a loop is a loop"
        decisions.append(Decision(NAME, what, where(eqn), True, "it can join that loop", exactness=exactness))
    return jaxpr if len(eqns) == len(jaxpr.eqns) else with_equations(jaxpr, eqns)
