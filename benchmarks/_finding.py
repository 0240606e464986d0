"""A finding: one ratio of a claim that compares something else than a natural and an expert form."""

from __future__ import annotations

from dataclasses import dataclass

from ._timing import Quartiles


@dataclass(frozen=True)
class Finding:
    """`ratio` of what `measure` names, which must not exceed `bound` (None: shown, not judged).

    A ratio of None could not be measured, for the reason in `details`; that counts as a miss.
    """

    case: str
    measure: str
    ratio: Quartiles | None
    bound: float | None
    details: str = ""

    @property
    def missed(self) -> tuple[str, ...]:
        """The broken bound as a sentence, if it is broken."""
        if self.ratio is None:
            return (f"not measured: {self.details}",)
        if self.bound is None or self.ratio.median <= self.bound:
            return ()
        return (f"{self.measure} {self.ratio.median:.3f}, bound {self.bound:g}",)
