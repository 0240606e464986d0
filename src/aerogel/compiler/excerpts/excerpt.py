"""An excerpt of a value along an axis, and equations that work on excerpts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Axis, Mapped, Reduced, take_block
from ..program import Builder, is_var
from ..record import record


@record
class Excerpt:
    """`size` indices from `start` on, an int or a scalar of the program, of an axis of `length`."""

    axis: Axis
    length: int
    start: int | Var
    size: int

    def on(self, axis: Axis) -> "Excerpt":
        """The same indices of an axis that stands elsewhere."""
        return Excerpt(axis, self.length, self.start, self.size)

    def with_all_of(self, other: "Excerpt") -> "Excerpt | None":
        """The smallest excerpt that holds both; None if that is not known, or is everything."""
        if self == other:
            return self
        if (self.axis, self.length) != (other.axis, other.length):
            return None
        if not isinstance(self.start, int) or not isinstance(other.start, int):
            return None
        start = min(self.start, other.start)
        end = max(self.start + self.size, other.start + other.size)
        return None if end - start == self.length else Excerpt(self.axis, self.length, start, end - start)


@dataclass
class Writer:
    """Writes equations for excerpts."""

    builder: Builder
    made: dict[Var, tuple[Atom, Excerpt]] = field(default_factory=dict)  # excerpts of values
    starts: dict[Var, Atom] = field(default_factory=dict)

    def narrowed(self, eqn: JaxprEqn, answer: Mapped | Reduced, part: Excerpt) -> list[Atom]:
        """What an equation makes of the excerpts of its operands at the indices of `part`.

        Of what is summed over the axis: the results themselves where the answer has `alone`, else a partial one.
        """
        operands = [
            x if axis is None else self.excerpt(x, part.on(axis))
            for x, axis in zip(eqn.invars, answer.ins, strict=True)
        ]
        alone = answer.alone if isinstance(answer, Reduced) else None
        return self.at(part, lambda at, *xs: alone(*xs) if alone else answer.block(at, part.size, *xs), *operands)

    def excerpt(self, x: Atom, part: Excerpt) -> Atom:
        """An excerpt of a value: of what was made of it, or of the whole."""
        assert is_var(x)
        made, of = self.made.get(x, (x, None))
        if of == part:
            return made
        if of is not None:
            assert isinstance(part.start, int), "excerpts are merged where they are known"
            assert isinstance(of.start, int), "excerpts are merged where they are known"
            part = Excerpt(part.axis, of.size, part.start - of.start, part.size)
        return self.at(part, lambda at, v: take_block(v, part.axis, part.length, at, part.size), made)[0]

    def at(self, part: Excerpt, function: Callable[..., Any], *operands: Atom) -> list[Atom]:
        """`function` of the start of an excerpt, and of operands."""
        start = part.start
        if isinstance(start, int):
            return self.builder.call(lambda *xs: function(start, *xs), *operands)
        return self.builder.call(function, self._start(start, part), *operands)

    def _start(self, start: Var, excerpt: Excerpt) -> Atom:
        """The start as `dynamic_slice` has it: within bounds."""
        if start not in self.starts:
            last = excerpt.length - excerpt.size

            def within(at: Any) -> Any:
                at = lax.clamp(np.zeros((), start.aval.dtype), at, np.asarray(last, start.aval.dtype))
                return _jax.convert_element_type(at, np.dtype(np.int32), False)

            (self.starts[start],) = self.builder.call(within, start)
        return self.starts[start]
