"""A sum of products: factors whose dimensions carry labels, and the labels that the result keeps.

`(A @ B) @ x` is `sum over j, k of A[i, j] B[j, k] x[k]`; `trace(A @ B)` is the same with both ends labelled alike. So
written, a broadcast is a factor without the label, an identity makes two labels one, a reshape splits labels, and the
order in which sums are taken is left open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aerogel._jax import Atom, Var

from ..record import record

Label = int
Labels = tuple[Label, ...]


class NotOneNetwork(ValueError):
    """Dimensions that do not fit each other: a reshape that cuts across, an index that is cut; or none at all."""


def _renumbered(dims: Sequence[Labels], numbers: Mapping[Label, Label]) -> tuple[Labels, ...]:
    return tuple(tuple(numbers[one] for one in dim) for dim in dims)


@record
class Picking:
    """That a factor is one-hot: 1 where the place along `label` is `index`, whose dimensions are labelled `at`."""

    index: Var
    at: tuple[Labels, ...]
    label: Labels

    def renumbered(self, numbers: Mapping[Label, Label]) -> "Picking":
        """The same with other labels."""
        (label,) = _renumbered([self.label], numbers)
        return Picking(self.index, _renumbered(self.at, numbers), label)


@record
class Factor:
    """A value; each of its dimensions is several labels, the last one fastest (none for a dimension of size 1).

    Of a value with a `window`, the places of dimension `window[0]` from `window[1]` to `window[2]` are meant. One that
    `is_mask` is multiplied by nothing, as 0 * nan is nan: rows are picked or added by its indices.
    """

    atom: Atom
    dims: tuple[Labels, ...]
    picking: Picking | None = None
    window: tuple[int, int, int] | None = None
    is_mask: bool = False


@dataclass
class Network:
    """A sum of products under construction.

    Attributes:
        out: the labels of each dimension of the result.
        coefficient: a number that everything is multiplied by.
        precisions: those of the products that were taken in.
        multiplies: whether values are multiplied at all; `joins`: whether factors are, entry by entry.
        is_finite: whether terms that are zero were left out, so that it is the same for finite values only.
        is_known: whether a factor was left out because its values are known.
        sums: how many factors it met that are known sums, of each of which it holds one term.
        centred: labels along which a factor subtracts means, of what is multiplied by it.
        places: of the equations that were taken in.
    """

    out: tuple[Labels, ...] = ()
    factors: list[Factor] = field(default_factory=list)
    coefficient: float = 1.0
    precisions: list[Any] = field(default_factory=list)
    multiplies: bool = False
    joins: bool = False
    is_finite: bool = False
    is_known: bool = False
    sums: int = 0
    centred: list[Label] = field(default_factory=list)
    places: set[int] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)
    summed: list[Label] = field(default_factory=list)
    _parts: dict[Label, Labels] = field(default_factory=dict)

    def label(self, size: int) -> Labels:
        """A new label; none is needed for a dimension of size 1."""
        if size == 0:
            raise NotOneNetwork("a sum of nothing")
        if size == 1:
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def sum_over(self, size: int) -> Labels:
        """A new label that is summed over."""
        new = self.label(size)
        self.summed += new
        return new

    def resolved(self, labels: Sequence[Label]) -> Labels:
        """The labels that stand for some after what was split and joined."""
        found: list[Label] = []
        for one in labels:
            parts = self._parts.get(one)
            found += [one] if parts is None else self.resolved(parts)
        return tuple(found)

    def join(self, one: Labels, other: Labels) -> None:
        """Makes two dimensions of one size the same, splitting their labels where one is cut finer."""
        left, right = list(self.resolved(one)), list(self.resolved(other))
        while left and right:
            a, b = left[0], right[0]
            # The first label is the slowest: dimensions are compared from the front.
            if self.sizes[a] > self.sizes[b]:
                self._split(a, self.sizes[b])
            elif self.sizes[a] < self.sizes[b]:
                self._split(b, self.sizes[a])
            elif a != b:
                self._parts[b] = (a,)
            left, right = list(self.resolved(left)), list(self.resolved(right))
            if left[0] == right[0]:
                left, right = left[1:], right[1:]
        if left or right:
            raise NotOneNetwork("dimensions of other sizes")

    def cut(self, labels: Sequence[Label], shape: Sequence[int]) -> list[Labels]:
        """Labels dealt out to the dimensions of a shape of the same size, in order, split where they must be."""
        rest = list(self.resolved(labels))
        found: list[Labels] = []
        for size in shape:
            mine: list[Label] = []
            while size > 1:
                if rest and self.sizes[rest[0]] > size:
                    self._split(rest[0], size)
                    rest = list(self.resolved(rest))
                if not rest or size % self.sizes[rest[0]]:
                    raise NotOneNetwork("a reshape that cuts across")
                size //= self.sizes[rest[0]]
                mine.append(rest.pop(0))
            found.append(tuple(mine))
        assert not rest, "a reshape of another size"
        return found

    def _split(self, one: Label, first: int) -> None:
        if self.sizes[one] % first:
            raise NotOneNetwork("a label that cannot be split")
        new = (*self.label(first), *self.label(self.sizes[one] // first))
        self._parts[one] = new

    def multiply(self, factor: Factor) -> None:
        """One factor more."""
        self.factors.append(factor)

    def finish(self) -> None:
        """Resolves and renumbers all labels, and counts those that no factor has: their terms are equal."""
        self.out = tuple(self.resolved(dim) for dim in self.out)
        self.factors = [self._finished(factor) for factor in self.factors]
        numbers: dict[Label, Label] = {}
        for dim in (*self.out, *(dim for factor in self.factors for dim in factor.dims)):
            for one in dim:
                numbers.setdefault(one, len(numbers))
        for one in dict.fromkeys(self.resolved(self.summed)):
            if one not in numbers:
                self.coefficient *= self.sizes[one]
        self.sizes = [self.sizes[one] for one in numbers]
        self.out = _renumbered(self.out, numbers)
        self.factors = [
            replace(f, dims=_renumbered(f.dims, numbers), picking=f.picking and f.picking.renumbered(numbers))
            for f in self.factors
        ]

    def _finished(self, factor: Factor) -> Factor:
        dims = tuple(self.resolved(dim) for dim in factor.dims)
        picking = factor.picking
        if picking is not None:
            label = self.resolved(picking.label)
            at = tuple(self.resolved(dim) for dim in picking.at)
            flat = [one for dim in at for one in dim]
            # What is picked from in parts, or by an index that is read along its diagonal, is a matrix like any other.
            plain = len(label) != 1 or label[0] in flat or len(set(flat)) != len(flat)
            picking = None if plain else Picking(picking.index, at, label)
        if factor.is_mask and picking is None:
            raise NotOneNetwork("a mask that no index says")
        return replace(factor, dims=dims, picking=picking)
