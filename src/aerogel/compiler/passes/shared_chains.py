"""Shared chains: what several read at the end of a long chain is computed once (see `shared_chains.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..exactness import Exactness
from ..levels import Around, rewrite_nested
from ..pipeline import Context
from ..program import Program, where
from ..readers.seams import stored
from ..readers.shared_chains import shared_chains
from ..record import record
from ..report import Decision

NAME = "shared-chains"


@record
class SharedChains:
    """The pass. Bound: each equation is looked at twice, with the arrays that it is computed from. CPUs only."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such values stored, and a decision for each."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr, around: Around) -> Jaxpr:
            if any(eqn.primitive.name in ("scan", "while") for eqn in around):
                return jaxpr
            found = shared_chains(jaxpr)
            for one in found:
                eqn = jaxpr.eqns[one.place]
                what = f"`{eqn.primitive.name}` is computed once, for {one.kernels} readers"
                reason = f"each would compute it from {one.arrays} arrays; saves {1e6 * one.seconds:.1f} us"
                decisions.append(Decision(NAME, what, where(eqn), True, reason))
            return stored(jaxpr, {one.place for one in found}) if found else jaxpr

        return rewrite_nested(program, level), decisions
