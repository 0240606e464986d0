"""What one call of a prepared function costs, and how much more a gradient costs than the value alone."""

from dataclasses import dataclass
from typing import Any

from aerogel.compiler.cost import program_cost

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class PreparedCost:
    """What one call costs. It prints as a table.

    Attributes:
        seconds: an estimate for this machine's kind of device, without the call itself. It orders programs; it is no
            clock.
        flops: of the optimised program, a multiply-add counts 2.
        bytes_moved: what its kernels read and write.
        temp_bytes: memory beside arguments and results, as XLA planned it.
        value: of a gradient, the cost of the function that it is the gradient of.
    """

    seconds: float
    flops: int
    bytes_moved: int
    temp_bytes: int
    value: "PreparedCost | None" = None

    @property
    def residual_bytes(self) -> int | None:
        """Temporary memory that the gradient needs beyond that of the value: what is kept for the way back."""
        return None if self.value is None else max(0, self.temp_bytes - self.value.temp_bytes)

    @property
    def over_value(self) -> dict[str, float] | None:
        """Each figure over the value's, by name; inf where that is 0."""
        if self.value is None:
            return None
        pairs = zip(self._figures().items(), self.value._figures().values(), strict=True)
        return {name: own / of if of else (float("inf") if own else 1.0) for (name, own), of in pairs}

    def _figures(self) -> dict[str, float]:
        names = ("seconds", "flops", "bytes_moved", "temp_bytes")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        ratios = self.over_value
        rows = [("", "a call", "the value alone", "ratio") if ratios else ("", "a call")]
        for name, own in self._figures().items():
            row = (name.replace("_", " "), _short(own))
            if self.value is not None and ratios is not None:
                row += (_short(getattr(self.value, name)), f"{ratios[name]:.2f}")
            rows.append(row)
        if self.residual_bytes is not None:
            rows.append(("residual bytes", _short(self.residual_bytes), "", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = (
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            for row in rows
        )
        return "\n".join("  ".join(line).rstrip() for line in lines)


def cost_of(traced: Any, compiled: Any) -> PreparedCost:
    """The cost of an optimised program, traced and compiled."""
    cost = program_cost(traced.jaxpr, seconds=True)
    assert cost.seconds is not None, "it was asked for"
    return PreparedCost(cost.seconds, cost.flops, cost.bytes_moved, compiled.memory_analysis().temp_size_in_bytes)


def _short(figure: float) -> str:
    """A figure with three digits and the letter of its thousands; a time in microseconds."""
    if isinstance(figure, float):
        return f"{figure * 1e6:.3g} us"
    for unit, letter in _UNITS:
        if figure >= unit:
            return f"{figure / unit:.3g} {letter}"
    return str(figure)
