"""Loop ends: what a loop reads of a longer array or adds to one is read and written there (see `loop_ends.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr

from ..cost import nbytes
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..loops.loop_ends import Ends, ends_of, has_home, in_place
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision
from .loop_kernel import becomes_one

NAME = "loop-ends"
WINDOWS = "slices of an array are read from it, step by step"
JOINTS = "outputs are written where they are joined to others"
ONE_KERNEL = "its steps become one kernel, which takes less than the copies"
# One kernel of 2,000 steps of 64 or 128 numbers takes 0.1 to 0.6 of the time, with copies; as kernels that write where
# the outputs go they take 0.4 to 0.9. Of rows of 1 kB and more, and of 40 MB, the copies take as long.
LONGEST_COPIED, MOST_COPIED = 1 << 10, 24 << 20


@record
class LoopEnds:
    """The pass. Bound: each loop is looked at once. It runs late: the others know inputs and outputs of steps."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with loops that copy neither, and a decision for each."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
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
        if _is_left_to_one_kernel(level, place, ends, context):
            decisions += _decisions(loop, ends, ONE_KERNEL)
        elif ends.windows or ends.joints:
            taken |= {joint.place for joint in ends.joints.values()}
            decisions += _decisions(loop, ends)
            edits += in_place(level, place, loop, ends, counts=not becomes_one(eqn, context))
    if not edits:
        return jaxpr
    new, made = apply_edits(jaxpr, edits)
    assert made == len(edits), "a loop was made without what reads its outputs"
    return new


def _is_left_to_one_kernel(level: Level, place: int, ends: Ends, context: Context) -> bool:
    """Whether the loop at `place` becomes one kernel, copies of little, and needs no array less for this pass."""
    copied = [*ends.windows, *ends.joints]
    row = max((nbytes(x.aval) // x.aval.shape[0] for x in copied), default=LONGEST_COPIED)
    if row >= LONGEST_COPIED or sum(nbytes(x.aval) for x in copied) > MOST_COPIED or has_home(level, place, ends):
        return False
    return becomes_one(level.eqns[place], context)


def _decisions(loop: Loop, ends: Ends, refusal: str | None = None) -> list[Decision]:
    sizes = {
        what: sum(nbytes(x.aval) for x in found) for what, found in ((WINDOWS, ends.windows), (JOINTS, ends.joints))
    }
    reason = "else the loop would have copies of its own"
    if refusal is not None:
        return [Decision(NAME, what, where(loop.eqn), False, refusal) for what, size in sizes.items() if size]
    return [
        Decision(NAME, what, where(loop.eqn), True, reason, 0, 2 * size, size) for what, size in sizes.items() if size
    ]
