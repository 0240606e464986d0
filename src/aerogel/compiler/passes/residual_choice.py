"""Residual choice: a backward loop computes again what is cheaper to compute than to store and read.

See docs/explanation/residual-choice.md.
"""

from aerogel._jax import Jaxpr, JaxprEqn

from ..cost import Machine
from ..exactness import Exactness
from ..level import Level
from ..levels import rewrite_levels
from ..loop import as_loop
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..record import record
from ..report import Decision
from ..residuals.residuals import Residuals, cheapest, rebuilt

NAME = "residual-choice"


@record
class ResidualChoice:
    """The pass. The time predicted for storing and recomputing decreases strictly with each loop that changes."""

    name: str = NAME
    exactness: Exactness = Exactness.NO_WORSE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with what its loops store for each other chosen, and a decision for each loop that changed."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            return choose_residuals(jaxpr, context.machine, decisions, parts_from=context.machine.fresh_bytes)

        return rewrite_levels(program, level), decisions


def choose_residuals(
    jaxpr: Jaxpr, machine: Machine, decisions: list[Decision], parts_from: float = float("inf")
) -> Jaxpr:
    """One level with what its loops store chosen; the same object when nothing changes.

    In rounds: all loops that share no reader change together. Those that store `parts_from` bytes or more may yet be
    run in parts.
    """
    while True:
        level = Level(jaxpr)
        new: dict[int, list[JaxprEqn]] = {}
        for place, eqn in enumerate(jaxpr.eqns):
            loop = as_loop(eqn)
            found = None if loop is None else cheapest(level, place, loop, machine, parts_from)
            if found is not None and new.keys().isdisjoint((place, *found.readers)):
                new.update(rebuilt(level, found))
                decisions.append(_decision(found))
        if not new:
            return jaxpr
        eqns = [one for i, eqn in enumerate(jaxpr.eqns) for one in new.get(i, [eqn])]
        jaxpr = drop_dead(with_equations(jaxpr, eqns, jaxpr.outvars))


def _decision(found: Residuals) -> Decision:
    again = sum(v not in found.stored for v in found.needed.values())
    return Decision(
        NAME,
        f"{again} of {len(found.needed)} values that a loop stores for its gradient are computed again from the others",
        where(found.loop.eqn),
        True,
        "computing them costs less than writing and reading them",
        bytes_saved=2 * found.bytes_saved,
        peak_bytes_saved=found.bytes_saved,
        exactness=Exactness.NO_WORSE,
    )
