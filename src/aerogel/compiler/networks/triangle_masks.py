"""Masks that are triangles, however they are spelt: `tril`, a comparison of two counters, several joined."""

from collections.abc import Callable, Sequence

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Literal

from ..known.records import Below, Constant, Facts, the
from ..level import Level
from ..record import record
from .network import Labels

Dims = tuple[Labels, ...]


@record
class Triangle:
    """True where the place along `a` is at least `by` more than that along `b`."""

    a: Labels
    b: Labels
    by: int

    @property
    def rest(self) -> "Triangle":
        """What is true elsewhere."""
        return Triangle(self.b, self.a, 1 - self.by)


@record
class TriangleMasks:
    """Reads masks of a level."""

    level: Level
    facts: Facts
    viewed: Callable[[Atom, Dims], tuple[Atom, Dims] | None]  # what a value is a view of, if it is one

    def read(self, x: Atom, dims: Dims) -> frozenset[Triangle] | None:
        """The triangles in all of which a mask of labelled dimensions is true, and nowhere else; None if unknown."""
        while not self.is_everywhere(x, True):
            below = the(Below, self.facts.of(x))
            if below is not None:
                return frozenset({Triangle(dims[below.a], dims[below.b], below.by)})
            found = self.viewed(x, dims)
            if found is None:
                eqn = self.level.maker(x)
                return None if eqn is None else self._made(eqn, dims)
            x, dims = found
        return frozenset()

    def _made(self, eqn: JaxprEqn, dims: Dims) -> frozenset[Triangle] | None:
        name, operands = eqn.primitive.name, eqn.invars
        if name == "and":
            one, other = (self.read(x, stretched(x, dims)) for x in operands)
            return None if one is None or other is None else one | other
        if name == "not" and operands[0].aval.dtype == np.bool_:
            return _negated(self.read(operands[0], dims))
        if name == "select_n" and len(operands) == 3:
            which, false, true = operands
            found = self.read(which, stretched(which, dims))
            if self.is_everywhere(false, False):  # `tril`
                more = self.read(true, stretched(true, dims))
                return None if found is None or more is None else found | more
            return _negated(found) if self.is_everywhere(false, True) and self.is_everywhere(true, False) else None
        if name in ("ne", "eq") and (zero := self._compared(operands, 0)) is not None:
            found = self.read(zero, stretched(zero, dims))
            return found if name == "ne" else _negated(found)
        if name in ("ne", "eq") and (one := self._compared(operands, 1)) is not None:
            found = self.read(one, stretched(one, dims)) if the(Below, self.facts.of(one)) else None
            return found if name == "eq" else _negated(found)
        return self.read(operands[0], dims) if name == "convert_element_type" else None

    def _compared(self, operands: Sequence[Atom], number: int) -> Atom | None:
        """What is compared with a number."""
        known = [the(Constant, self.facts.of(x)) for x in operands]
        at = next((k for k in (0, 1) if (c := known[k]) is not None and c.value == number), None)
        return None if at is None else operands[1 - at]

    def is_everywhere(self, x: Atom, value: bool) -> bool:
        """Whether each entry is True, or each is False."""
        eqn = self.level.maker(x)
        while eqn is not None and eqn.primitive.name in ("broadcast_in_dim", "reshape", "transpose"):
            x = eqn.invars[0]
            eqn = self.level.maker(x)
        return isinstance(x, Literal) and x.aval.dtype == np.bool_ and bool(np.all(np.equal(x.val, value)))


def stretched(x: Atom, dims: Dims) -> Dims:
    """The labels of an operand of an entrywise equation: scalars and dimensions of size 1 are repeated."""
    shape = x.aval.shape
    return tuple(() if n == 1 else dim for n, dim in zip(shape, dims, strict=True)) if shape else ()


def _negated(found: frozenset[Triangle] | None) -> frozenset[Triangle] | None:
    if found is None or len(found) != 1:
        return None
    (one,) = found
    return frozenset({one.rest})
