"""Half spectra: transforms of real numbers, and back to real numbers, make and read one half of each spectrum."""

from typing import Any, ClassVar

from aerogel._jax import Jaxpr

from ..apart import cost_of
from ..exactness import Exactness
from ..excerpts.conjugate_symmetry import transform
from ..excerpts.half_spectra import FEWEST, half_spectra
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import normalize
from ..pipeline import Context
from ..program import Program, where
from ..record import record
from ..report import Decision

NAME = "half-spectra"
WHAT = "spectra of real numbers"
MARGIN = 0.8


@record
class HalfSpectra:
    """The pass. Bound: from each transform upwards, each equation is looked at once.

    It waits for differentiation: JAX's derivatives of the transforms of real numbers make whole spectra.
    """

    platforms: ClassVar = ("cpu",)  # cuFFT's transforms of real numbers gained 9 % at most, and lost up to 21 %
    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with halves of its spectra, and a decision for each group of transforms that share some."""
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions))
        return (program if new is program else normalize(new)[0]), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    if sum(transform(eqn) is not None for eqn in jaxpr.eqns) < 2:
        return jaxpr
    level, edits = Level(jaxpr), list[Edit]()
    for group in half_spectra(level):
        ends = [eqn for eqn in group.eqns if transform(eqn)]
        (*_, length), size = transform(ends[-1]) or (1,), max(eqn.outvars[0].aval.size for eqn in ends)
        was = cost_of(level, group.eqns, group.results, context.machine)
        now = cost_of(level, group.edit.eqns, [group.edit.results[v] for v in group.results], context.machine)
        before, after = was.seconds or 0.0, now.seconds or 0.0
        saved: dict[str, Any] = {}
        if size < FEWEST:
            reason = f"{size} elements, fewer than {FEWEST}"
        elif length % 2:
            reason = f"an odd length of {length}"
        else:
            reason = f"{1e6 * before:.1f} us become {1e6 * after:.1f} us"
            if after <= MARGIN * before:
                edits.append(group.edit)
                saved["flops_saved"] = was.flops - now.flops
                saved["bytes_saved"] = was.bytes_moved - now.bytes_moved
                saved["peak_bytes_saved"] = was.peak_bytes - now.peak_bytes
        fired = bool(saved)
        what = f"{WHAT} are made by half" if fired else f"{WHAT} are made whole"
        decisions.append(
            Decision(NAME, what, where(ends[-1]), fired, reason, exactness=Exactness.REASSOCIATES, **saved)
        )
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr
