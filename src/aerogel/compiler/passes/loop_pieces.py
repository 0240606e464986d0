"""Loop pieces: what a step reads of its inputs in pieces is read piece by piece (see `pieces.py`)."""

from dataclasses import dataclass

from aerogel._jax import Jaxpr, JaxprEqn

from ..exactness import Exactness
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..pieces import Pieces, find_pieces, read_pieces
from ..pipeline import Context
from ..program import Program, where, with_equations
from ..report import Decision

NAME = "loop-pieces"


@dataclass(frozen=True)
class LoopPieces:
    """The pass. Bound: each loop is looked at once. It runs late: the others know steps by the entries they read."""

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such pieces read from the whole, and a decision for each loop."""
        if context.platform != "cpu" or context.before_differentiation:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    eqns: list[JaxprEqn] = []
    fired = False
    for eqn in jaxpr.eqns:
        loop = as_loop(eqn)
        found = None if loop is None else find_pieces(loop)
        if loop is None or found is None:
            eqns.append(eqn)
            continue
        fired = True
        eqns += read_pieces(loop, found)
        decisions.append(_decision(loop, found))
    return with_equations(jaxpr, eqns) if fired else jaxpr


def _decision(loop: Loop, found: Pieces) -> Decision:
    first = loop.body.eqns[min(found.slices)]
    what = f"{len(found.slices)} pieces of what a step is given are read one by one"
    reason = f"a piece of a step's entry is not computed on in vectors, in {loop.length} steps"
    return Decision(NAME, what, where(first) or where(loop.eqn), True, reason)
