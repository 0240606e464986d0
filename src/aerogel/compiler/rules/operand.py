"""What a rule's condition is told about the operands at a site."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..._jax import Atom, Literal
from ..program import is_var
from .facts import facts_at
from .graph import Graph
from .traces import Reading, number

PRODUCTS = frozenset(("dot_general", "ragged_dot_general", "conv_general_dilated"))
SCALED = frozenset("mul div select_n convert_element_type reshape squeeze expand_dims transpose".split())


@dataclass(frozen=True)
class Operand:
    """One array at a site, for one example where the site is batched."""

    shape: tuple[int, ...]
    dtype: Any
    _value: Callable[[], Any] = field(default=lambda: None, repr=False)
    _facts: Callable[[], frozenset[str]] = field(default=frozenset, repr=False)
    examples: int = 1  # that have an array of their own; 1 where they share it
    _stored: Callable[[str], bool] = field(default=lambda _: False, repr=False)

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

    @cached_property
    def value(self) -> Any:
        """The array or number, where the program holds it as a constant, the same for each example; else None."""
        return self._value()

    @cached_property
    def facts(self) -> frozenset[str]:
        """What is known of it: from the program, from its entries where it is a constant, and by `ag.assume`.

        "constant". Of all entries: "zero", "ones", "finite", "non_negative", "positive". Of the matrices in its last
        two dimensions: "identity", "diagonal", "symmetric", "kronecker" (a Kronecker product), and as it is said
        "spd", "orthogonal", "lower_triangular", "upper_triangular". Of its last dimension: "sorted" (no entry is
        smaller than the one before) and "one_hot" (one entry is 1 at most, the others are 0). "broadcast": along one
        of its dimensions it does not vary.

        Facts about entries that are 0 hold where the values of the program are finite, and "symmetric" and
        "kronecker" up to rounding.
        """
        return self._facts()

    def is_stored_as(self, operation: str) -> bool:
        """Whether what an operation makes of it, as "div", has to exist: a product reads it, or the caller.

        Scaled, masked or in another shape, too. All else XLA computes where it is read.
        """
        return self._stored(operation)


def operands_of(graph: Graph, atoms: Sequence[Atom], reading: Reading) -> list[Operand]:
    """What is known of the operands of a site, for one example."""
    dims = reading.example([tuple(range(len(x.aval.shape))) for x in atoms])
    return [_operand(graph, x, mine) for x, mine in zip(atoms, dims, strict=True)]


def _operand(graph: Graph, x: Atom, dims: tuple[int, ...]) -> Operand:
    whole = tuple(x.aval.shape)
    shape = tuple(whole[d] for d in dims)
    examples = math.prod(n for d, n in enumerate(whole) if d not in dims)
    value = lambda: value_at(graph, x) if shape == whole else None  # noqa: E731
    stored = lambda operation: _is_stored_as(graph, x, operation)  # noqa: E731
    return Operand(shape, x.aval.dtype, value, lambda: facts_at(graph, x, dims), examples, stored)


def _is_stored_as(graph: Graph, x: Atom, operation: str) -> bool:
    readers = graph.readers(x) if is_var(x) else ()
    made = (
        v for node in readers if node is not None and node.eqn.primitive.name == operation for v in node.eqn.outvars
    )
    return any(node is None or node.eqn.primitive.name in PRODUCTS for node in graph.reading(made, SCALED))


def value_at(graph: Graph, x: Atom) -> Any:
    """The array or number that a value of a level is, where the program holds it as a constant; else None."""
    return number(x) if isinstance(x, Literal) else graph.held(x)
