"""A limit on memory: a program that takes more computes some of its values twice (see `recompute.py`)."""

from typing import ClassVar

from aerogel._jax import ClosedJaxpr

from ..cost import jaxpr_seconds
from ..cost.account import jaxpr_cost
from ..cost.vector_code import with_vector_code
from ..exactness import Exactness
from ..pipeline import Context, broken_limit
from ..program import Program
from ..record import record
from ..report import Decision
from ..residuals.recompute import recomputed

NAME = "memory-limit"
SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24)


@record
class MemoryLimit:
    """The pass. Bound: as many forms as `SEGMENTS` has numbers, without dear operations and, if need be, with them.

    Of the forms that keep the limit the fastest is taken; where none does, the one that takes least memory.
    """

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.NO_WORSE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program within the limit, and a decision that says what it takes; itself where it is within."""
        limit, old = broken_limit(program, context), program.jaxpr
        if limit is None:
            return program, []
        machine = with_vector_code(context.machine)
        forms = [old]
        for dear in (False, True):
            forms += [new for n in SEGMENTS if (new := recomputed(old, n, dear, machine)) is not None]
            peaks = [jaxpr_cost(form).peak_bytes for form in forms]
            if min(peaks) <= limit:
                break
        within = [form for form, peak in zip(forms, peaks, strict=True) if peak <= limit]
        new = min(within, key=lambda form: jaxpr_seconds(form, machine)) if within else forms[peaks.index(min(peaks))]
        seconds = jaxpr_seconds(new, machine) - jaxpr_seconds(old, machine)
        decision = _decision(limit, peaks[0], jaxpr_cost(new).peak_bytes, seconds, new is not old)
        return (program if new is old else ClosedJaxpr(new, program.consts)), [decision]


def _decision(limit: int, old: int, new: int, seconds: float, fired: bool) -> Decision:
    missed = "" if new <= limit else f", which is still more than the limit of {limit / 1e6:.1f} MB"
    return Decision(
        NAME,
        "values of the forward part are computed again in the backward part",
        "",
        fired,
        f"{old / 1e6:.1f} MB become {new / 1e6:.1f} MB for {1e3 * seconds:.1f} ms{missed}",
        peak_bytes_saved=old - new,
        exactness=Exactness.NO_WORSE,
    )
