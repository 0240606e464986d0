"""Block sums: loops add up products of a few steps at once (see `block_sums.py`)."""

from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn

from ..exactness import Exactness
from ..level import Edit, apply_edits
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..loops.block_sums import Blocks, blocks_of, in_blocks
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "block-sums"


@record
class BlockSums:
    """The pass. Bound: each loop is looked at once. It runs late: the others know loops by the steps they share."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums made block by block, and a decision for each."""
        if self.exactness not in context.allowed or context.memory_limit is not None:
            return program, []
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            edits: list[Edit] = []
            for place, eqn in enumerate(jaxpr.eqns):
                loop = as_loop(eqn)
                found = None if loop is None else blocks_of(loop, context.machine)
                if loop is None or found is None:
                    continue
                decisions.extend(_decisions(loop, found))
                if found.refusal is None:
                    edits.append(in_blocks(loop, found, place))
            return apply_edits(jaxpr, edits)[0] if edits else jaxpr

        return rewrite_levels(program, level), decisions


def _decisions(loop: Loop, found: Blocks) -> list[Decision]:
    fired = found.refusal is None
    every = f"{found.size} of its {loop.length} steps" if found.size else f"a few of its {loop.length} steps"
    what = f"a sum of `dot_general` is one product for {every}"
    reason = (
        found.refusal
        or f"a step reads and writes the sum; all of this loop's in blocks save {1e3 * found.seconds:.2f} ms"
    )
    added = found.bytes_added if fired else 0
    products: list[JaxprEqn] = [one.eqn for one in found.sums if one.eqn is not None]
    exactness = Exactness.REASSOCIATES if fired else Exactness.BITWISE
    return [
        Decision(NAME, what, where(eqn), fired, reason, peak_bytes_saved=-added if k == 0 else 0, exactness=exactness)
        for k, eqn in enumerate(products)
    ]
