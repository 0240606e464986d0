"""Loop pieces: what a step reads of its inputs in pieces is read piece by piece (see `pieces.py`)."""

from typing import ClassVar

from aerogel._jax import JaxprEqn

from ..exactness import Exactness
from ..levels import rewrite_loops
from ..loop import Loop
from ..loops.pieces import Pieces, find_pieces, read_pieces
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "loop-pieces"


@record
class LoopPieces:
    """The pass. Bound: each loop is looked at once. It runs late: the others know steps by the entries they read."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such pieces read from the whole, and a decision for each loop."""
        decisions: list[Decision] = []
        return rewrite_loops(program, lambda loop, _: _loop(loop, decisions)), decisions


def _loop(loop: Loop, decisions: list[Decision]) -> list[JaxprEqn] | None:
    found = find_pieces(loop)
    if found is None:
        return None
    decisions.append(_decision(loop, found))
    return read_pieces(loop, found)


def _decision(loop: Loop, found: Pieces) -> Decision:
    first = loop.body.eqns[min(found.slices)]
    what = f"{len(found.slices)} pieces of what a step is given are read one by one"
    reason = f"a piece of a step's entry is not computed on in vectors, in {loop.length} steps"
    return Decision(NAME, what, where(first) or where(loop.eqn), True, reason)
