"""What a rule's condition is told about the operands at a site."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..._jax import Atom, Literal
from .facts import facts_at
from .graph import Graph
from .traces import Reading, number


@dataclass(frozen=True)
class Operand:
    """One array at a site, for one example where the site is batched.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        value: the array or number, where the program holds it as a constant; else None.
        facts: what is known of it: "constant", "zero", "ones", "identity", "diagonal", "symmetric", "non_negative" and
            "finite" where it can be told from the program, and what `ag.assume` says.
    """

    shape: tuple[int, ...]
    dtype: Any
    value: Any = None
    facts: frozenset[str] = frozenset()

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for n in self.shape:
            count *= n
        return count


def operands_of(graph: Graph, atoms: Sequence[Atom], reading: Reading) -> list[Operand]:
    """What is known of the operands of a site, for one example."""
    shapes = reading.example([tuple(x.aval.shape) for x in atoms])
    return [Operand(s, x.aval.dtype, _value(graph, x), facts_at(graph, x)) for s, x in zip(shapes, atoms, strict=True)]


def _value(graph: Graph, x: Atom) -> Any:
    if isinstance(x, Literal):
        return number(x)
    return graph.values.get(x)
