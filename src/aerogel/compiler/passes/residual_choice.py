"""Residual choice: a backward loop computes again what is cheaper to compute than to store and read.

See docs/explanation/residual-choice.md.
"""

from dataclasses import dataclass

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..cost import Machine
from ..exactness import Exactness
from ..level import Level
from ..levels import rewrite_levels
from ..long_sums import projected_bytes, with_sums_outside
from ..loop import as_loop
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..report import Decision
from ..residuals import Residuals, cheapest, rebuilt

NAME = "residual-choice"


@dataclass(frozen=True)
class ResidualChoice:
    """The pass. The time predicted for storing and recomputing decreases strictly with each loop that changes."""

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with what its loops store for each other chosen, and a decision for each loop that changed."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            return choose_residuals(
                jaxpr,
                context.machine,
                decisions,
                parts_from=context.machine.fresh_bytes,
                sums_outside=may_sum_outside(context),
            )

        return rewrite_levels(program, level), decisions


def may_sum_outside(context: Context) -> bool:
    """Whether sums over the steps may be made in another order, for memory, on a machine for which that is priced."""
    fast = Exactness.REASSOCIATES in context.allowed
    free = context.memory_limit is None and not context.before_differentiation
    return fast and free and context.platform == "cpu"


def choose_residuals(
    jaxpr: Jaxpr,
    machine: Machine,
    decisions: list[Decision],
    parts_from: float = float("inf"),
    *,
    sums_outside: bool = False,
) -> Jaxpr:
    """One level with what its loops store chosen; the same object when nothing changes.

    In rounds: all loops that share no reader change together. Those that store `parts_from` bytes or more may yet be
    run in parts. With `sums_outside`, what that spares may be taken by the factors of sums of products.
    """
    spared: dict[Var, int] = {}
    while True:
        level = Level(jaxpr)
        new: dict[int, list[JaxprEqn]] = {}
        for place, eqn in enumerate(jaxpr.eqns):
            loop = as_loop(eqn)
            found = None if loop is None else cheapest(level, place, loop, machine, parts_from)
            if found is not None and new.keys().isdisjoint((place, *found.readers)):
                new.update(rebuilt(level, found))
                decisions.append(_decision(found))
                if sums_outside and len(found.readers) == 1:
                    room = max(0, found.bytes_saved - projected_bytes(level, found.loop))
                    for v in level.eqns[found.readers[0]].outvars:
                        spared[v] = spared.get(v, 0) + room
        if not new:
            break
        eqns = [one for i, eqn in enumerate(jaxpr.eqns) for one in new.get(i, [eqn])]
        jaxpr = drop_dead(with_equations(jaxpr, eqns, jaxpr.outvars))
    jaxpr, moved = with_sums_outside(jaxpr, spared, machine)
    decisions += [_outside(eqn, added) for eqn, added in moved]
    return jaxpr


def _outside(eqn: JaxprEqn, bytes_added: int) -> Decision:
    return Decision(
        NAME,
        f"a sum of `{eqn.primitive.name}` over the steps is one product after the loop",
        where(eqn),
        True,
        "its factors take no more memory than was saved",
        bytes_saved=-2 * bytes_added,
        peak_bytes_saved=-bytes_added,
        exactness=Exactness.REASSOCIATES,
    )


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
