"""What the compiler did to one function, as data.

`Decision`: one site, fired or refused, and why. `Report`: all decisions of one traced function. Rendering is in
`render.py`; these values hold no text layout.
"""

from dataclasses import dataclass, field

from .cost import Cost


@dataclass(frozen=True)
class Decision:
    """One place where something could fire."""

    rule: str
    what: str
    where: str
    fired: bool
    reason: str
    flops_saved: int = 0
    bytes_saved: int = 0
    peak_bytes_saved: int = 0
    exactness: str = "bitwise"
    failed: bool = False


@dataclass(frozen=True)
class Report:
    """Everything that was decided about one traced function."""

    name: str
    where: str
    decisions: tuple[Decision, ...]
    before: Cost
    after: Cost
    equations: int
    seconds: float
    schema: int = field(default=1)

    @property
    def fired(self) -> tuple[Decision, ...]:
        """Decisions that changed the program."""
        return tuple(d for d in self.decisions if d.fired)

    @property
    def refused(self) -> tuple[Decision, ...]:
        """Sites left as they were, each with its reason."""
        return tuple(d for d in self.decisions if not d.fired and not d.failed)

    @property
    def failed(self) -> tuple[Decision, ...]:
        """Passes that raised or made an ill-typed program; the program was left as it was."""
        return tuple(d for d in self.decisions if d.failed)

    def __str__(self) -> str:
        from .render import report_to_text

        return report_to_text(self)

    def _repr_html_(self) -> str:
        from .render import report_to_html

        return report_to_html(self)
