"""Loop ends: what a loop reads of a longer array or adds to one is read and written there (see `loop_ends.py`)."""

from dataclasses import dataclass
from typing import ClassVar

from aerogel._jax import Jaxpr

from ..cost import nbytes
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..loops.loop_ends import Ends, ends_of, in_place
from ..pipeline import Context
from ..program import Program, where
from ..report import Decision

NAME = "loop-ends"
WINDOWS = "slices of an array are read from it, step by step"
JOINTS = "outputs are written where they are joined to others"


@dataclass(frozen=True)
class LoopEnds:
    """The pass. Bound: each loop is looked at once. It runs late: the others know inputs and outputs of steps."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with loops that copy neither, and a decision for each."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    if not any(eqn.primitive.name == "scan" for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(jaxpr)
    edits: list[Edit] = []
    taken: set[int] = set()
    for place, eqn in enumerate(jaxpr.eqns):
        loop = as_loop(eqn)
        if loop is None:
            continue
        ends = ends_of(level, loop, taken)
        if ends.windows or ends.joints:
            taken |= {joint.place for joint in ends.joints.values()}
            decisions += _decisions(loop, ends)
            edits += in_place(level, place, loop, ends)
    if not edits:
        return jaxpr
    new, made = apply_edits(jaxpr, edits)
    assert made == len(edits), "a loop was made without what reads its outputs"
    return new


def _decisions(loop: Loop, ends: Ends) -> list[Decision]:
    sizes = {
        what: sum(nbytes(x.aval) for x in found) for what, found in ((WINDOWS, ends.windows), (JOINTS, ends.joints))
    }
    reason = "else the loop would have copies of its own"
    return [
        Decision(NAME, what, where(loop.eqn), True, reason, 0, 2 * size, size) for what, size in sizes.items() if size
    ]
