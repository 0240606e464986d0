"""Large values as polynomials of a few of them: what is summed in a full sum, and what only stands beside it.

A factor that does not vary along a sum leaves it: `sum(a * x) = a * sum(x)`. A sum of terms is taken apart where

- it is one of integers;
- each term is made of values that are spread themselves: `sum(a[:, None] * b + c)` goes through a, b and c then, and
  not through all pairs;
- a term is a product: `sum(((x - mu) / sigma) ** 2 + 2 * log(sigma))` sums squares. It was rounded already.

Elsewhere terms may cancel entry by entry: `sum(x - y)` of two alike arrays loses nothing as it stands, and a difference
of two sums does. For the same reason no product of two sums of terms is multiplied out.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..known.records import Constant, Facts, Repeated, Spread, the
from ..level import Level
from ..program import Builder, is_var

DEEPEST = 100
MOST_TERMS = 8
MOST_FACTORS = 4  # of a term
SUMMED = frozenset("float32 float64 complex64 complex128 int32 int64 uint32 uint64".split())

Monomial = tuple[Var, ...]
Coefficient = Any  # a number, or the atom of a value in the shape of the sum
Polynomial = dict[Monomial, Coefficient]


@dataclass
class Expansion:
    """What equations of one level are as polynomials, for one way to sum.

    Attributes:
        level, facts: where the values stand and what is known of them.
        shape, axes: of the values that are summed, and the dimensions that go.
        builder: takes the equations of coefficients and sums.
        ranks: the bases in the order in which they were met.
        spreads: what was spread over the dimensions that go, other than numbers.
        sums: of bases, which the level holds anyway.
    """

    level: Level
    facts: Facts
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    builder: Builder
    ranks: dict[Var, int] = field(default_factory=dict)
    spreads: set[Var] = field(default_factory=set)
    sums: Mapping[Var, Var] = field(default_factory=dict)
    _known: dict[Var, Polynomial] = field(default_factory=dict)

    @property
    def kept(self) -> tuple[int, ...]:
        """The dimensions of the sum."""
        return tuple(d for d in range(len(self.shape)) if d not in self.axes)

    @property
    def count(self) -> int:
        """How many entries each sum has."""
        return math.prod(self.shape[d] for d in self.axes)

    def read(self, atom: Atom, depth: int = 0) -> Polynomial | None:
        """`atom` as a polynomial; None if it has another shape, and is not one that is stretched to this one."""
        if is_var(atom) and atom in self._known:
            return self._known[atom]
        beside = self._beside(atom)
        if beside is not None:
            return {} if _is_number(beside) and beside == 0 else {(): beside}
        if not is_var(atom) or not self._is_stretched(tuple(atom.aval.shape)):
            return None
        found = self._open(atom, depth) or self._base(atom)
        self._known[atom] = found
        return found

    def _open(self, var: Var, depth: int) -> Polynomial | None:
        """A value by what it is made of; None if that is no polynomial of few terms."""
        place = self.level.made_by.get(var)
        eqn = None if place is None else self.level.eqns[place]
        if eqn is None or depth > DEEPEST or eqn.primitive.name not in OPEN or eqn.effects:
            return None
        if any(x.aval.dtype != var.aval.dtype for x in eqn.invars):
            return None
        operands = [self.read(x, depth + 1) for x in eqn.invars]
        if any(operand is None for operand in operands):
            return None
        found = OPEN[eqn.primitive.name](self, eqn, operands)
        if found is None or len(found) > MOST_TERMS or any(len(monomial) > MOST_FACTORS for monomial in found):
            return None
        return found if all(_is_held(c, var.aval.dtype) for c in found.values()) else None

    def _base(self, var: Var) -> Polynomial:
        self.ranks.setdefault(var, len(self.ranks))
        return {(var,): 1}

    def _is_stretched(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(n in (1, m) for n, m in zip(shape, self.shape, strict=True))

    def _repeated(self, base: Var) -> frozenset[int]:
        """The dimensions of a sum along which a base does not vary."""
        known = {r.dim for r in self.facts.of(base) if isinstance(r, Repeated)}
        return frozenset(d for d in range(len(self.shape)) if base.aval.shape[d] == 1 or d in known)

    def is_separable(self, monomial: Monomial) -> bool:
        """Whether the sum of a product goes through less than all entries: its factors are spread themselves."""
        return all(self._repeated(base) & set(self.axes) for base in monomial)

    def _beside(self, atom: Atom) -> Coefficient | None:
        """What does not vary along what is summed: a number, or a value in the shape of the sum."""
        known = self.facts.of(atom)
        constant = the(Constant, known)
        if constant is not None and np.isfinite(constant.value):
            return constant.value
        if not is_var(atom):
            return None
        shape = tuple(atom.aval.shape)
        spread = the(Spread, known)
        if not shape:
            source, along = atom, ()
        elif spread is not None and shape == self.shape and not set(spread.along) & set(self.axes):
            source, along = spread.source, spread.along
        elif len(shape) == len(self.shape) and all(shape[d] == 1 for d in self.axes):
            source, along = atom, tuple(d if shape[d] != 1 else -1 for d in range(len(shape)))
        else:
            return None
        self.spreads.add(source)
        kept, wanted = self.kept, tuple(self.shape[d] for d in self.kept)

        def placed(x: Any) -> Any:
            ones = [d for d, to in enumerate(along) if to < 0]
            rest = [to for to in along if to >= 0]
            x = lax.transpose(lax.squeeze(x, ones), sorted(range(len(rest)), key=rest.__getitem__))
            return lax.broadcast_in_dim(x, wanted, [kept.index(to) for to in sorted(rest)])

        return source if tuple(source.aval.shape) == wanted == () else self.builder.call(placed, source)[0]

    def combined(self, function: Callable[..., Any], *coefficients: Coefficient) -> Coefficient:
        """A function of coefficients: of numbers at once, of values by equations."""
        atoms = [x for x in coefficients if not _is_number(x)]
        if not atoms:
            return function(*coefficients)
        aval = atoms[0].aval

        def run(*xs: Any) -> Any:
            values = iter(xs)
            return function(*(_as(x, aval.dtype) if _is_number(x) else next(values) for x in coefficients))

        return self.builder.call(run, *atoms)[0]

    def plus(self, one: Coefficient, other: Coefficient) -> Coefficient:
        """The sum of two coefficients."""
        for a, b in ((one, other), (other, one)):
            if _is_number(a) and a == 0:
                return b
        return self.combined(operator.add, one, other)

    def times(self, one: Coefficient, other: Coefficient) -> Coefficient:
        """The product of two coefficients."""
        for a, b in ((one, other), (other, one)):
            if _is_number(a) and a == 1:
                return b
        return self.combined(operator.mul, one, other)

    def is_apart(self, polynomial: Polynomial) -> bool:
        """Whether its sum is another computation than the sum of what it was read from."""
        ((monomial, coefficient), *more) = polynomial.items() or [((), 0)]
        is_plain = _is_number(coefficient) and coefficient == 1 and len(self._apart(monomial)) == 1
        return bool(more) or not is_plain or self.is_separable(monomial)

    def summed(self, polynomial: Polynomial, dtype: Any) -> Atom:
        """The sum of a polynomial over the dimensions that go."""
        total: Coefficient = 0
        for monomial, coefficient in polynomial.items():
            total = self.plus(total, self.times(self._sum_of(monomial), coefficient))
        if _is_number(total):
            shape, number = tuple(self.shape[d] for d in self.kept), _as(total, dtype)
            return self.builder.call(lambda: lax.full(shape, number, dtype))[0]
        return total

    def _sum_of(self, monomial: Monomial) -> Coefficient:
        if not monomial:
            return self.count
        groups = self._apart(monomial)
        varied = {d for _, axes in groups for d in axes}
        total: Coefficient = math.prod(self.shape[d] for d in self.axes if d not in varied)
        for group, axes in groups:
            total = self.times(total, self._sum_of_group(group, axes))
        return total

    def _apart(self, monomial: Monomial) -> list[tuple[Monomial, frozenset[int]]]:
        """The factors of a product by the summed dimensions along which they vary: its sum is the product of theirs."""
        groups: list[tuple[Monomial, frozenset[int]]] = []
        for base in monomial:
            axes = frozenset(self.axes) - self._repeated(base)
            joined = [group for group in groups if group[1] & axes]
            groups = [group for group in groups if not group[1] & axes]
            whole = (*(one for group, _ in joined for one in group), base)
            groups.append((whole, axes.union(*(more for _, more in joined))))
        return groups

    def _sum_of_group(self, group: Monomial, summed: frozenset[int]) -> Atom:
        if len(group) == 1 and group[0] in self.sums and summed == frozenset(self.axes):
            return self.sums[group[0]]
        bases = list(dict.fromkeys(group))
        repeated = {base: self._repeated(base) for base in bases}
        joint = [n if any(d not in repeated[base] for base in bases) else 1 for d, n in enumerate(self.shape)]
        axes, kept = sorted(summed), self.kept
        gone = [d - sum(a < d for a in axes) for d in self.axes if d not in summed]
        wanted = tuple(self.shape[d] for d in kept)

        def run(*arrays: Any) -> Any:
            factors = []
            for base, x in zip(bases, arrays, strict=True):
                ends = [1 if d in repeated[base] else n for d, n in enumerate(x.shape)]
                narrow = lax.slice(x, [0] * x.ndim, ends)
                factors += [lax.broadcast_in_dim(narrow, joint, range(x.ndim))] * group.count(base)
            total = lax.squeeze(lax.reduce_sum(reduce(lax.mul, factors), axes), gone)
            return lax.broadcast_in_dim(total, wanted, range(len(kept)))

        return self.builder.call(run, *bases)[0]


def _is_number(x: Coefficient) -> bool:
    return isinstance(x, (int, float, complex))


def _as(number: Any, dtype: Any) -> Any:
    """A number as a scalar of a dtype; of integers, modulo their range."""
    if np.dtype(dtype).kind in "iu":
        bits = 8 * np.dtype(dtype).itemsize
        return np.asarray(int(number) % (1 << bits), f"uint{bits}").astype(dtype)[()]
    with np.errstate(over="ignore"):
        return np.asarray(number, dtype)[()]


def _is_held(coefficient: Coefficient, dtype: Any) -> bool:
    """Whether a type holds what numbers were multiplied to, neither as an infinity nor as zero."""
    if not _is_number(coefficient):
        return True
    held = _as(coefficient, dtype)
    return bool(np.isfinite(held)) and (held != 0 or coefficient == 0)


Operands = Sequence[Any]
Open = Callable[[Expansion, JaxprEqn, Operands], Polynomial | None]


def _add(expansion: Expansion, eqn: JaxprEqn, operands: Operands) -> Polynomial | None:
    terms = [(monomial, c) for operand in operands for monomial, c in operand.items() if monomial]
    is_rounded = any(len(monomial) > 1 or not _is_number(c) for monomial, c in terms)
    if is_rounded or _is_exact(eqn) or all(expansion.is_separable(monomial) for monomial, _ in terms):
        return _added(expansion, *operands)
    return None


def _is_exact(eqn: JaxprEqn) -> bool:
    """Whether an equation is one of integers, which wrap around in any order."""
    return eqn.outvars[0].aval.dtype.kind in "iu"


def _added(expansion: Expansion, one: Polynomial, other: Polynomial) -> Polynomial:
    found = dict(one)
    for monomial, coefficient in other.items():
        before = found.get(monomial)
        found[monomial] = coefficient if before is None else expansion.plus(before, coefficient)
    return found


def _scaled(expansion: Expansion, one: Polynomial, factor: Coefficient) -> Polynomial:
    return {monomial: expansion.times(c, factor) for monomial, c in one.items()}


def _neg(expansion: Expansion, eqn: JaxprEqn, operands: Operands) -> Polynomial:
    return _scaled(expansion, operands[0], -1)


def _sub(expansion: Expansion, eqn: JaxprEqn, operands: Operands) -> Polynomial | None:
    return _add(expansion, eqn, (operands[0], _scaled(expansion, operands[1], -1)))


def _mul(expansion: Expansion, eqn: JaxprEqn, operands: Operands) -> Polynomial | None:
    found: Polynomial = {}
    for a, p in operands[0].items():
        for b, q in operands[1].items():
            monomial = tuple(sorted((*a, *b), key=expansion.ranks.__getitem__))
            found = _added(expansion, found, {monomial: expansion.times(p, q)})
    few, many = sorted(operands, key=len)
    if len(many) > 1 and any(few) and not _is_exact(eqn):
        return found if len(few) == 1 and all(map(expansion.is_separable, found)) else None
    return found


def _square(expansion: Expansion, eqn: JaxprEqn, operands: Operands) -> Polynomial | None:
    return _mul(expansion, eqn, (operands[0], operands[0])) if eqn.params.get("y", 2) == 2 else None


def _div(expansion: Expansion, eqn: JaxprEqn, operands: Operands) -> Polynomial | None:
    one, other = operands
    if set(other) != {()} or _is_exact(eqn):
        return None
    return {monomial: expansion.combined(operator.truediv, c, other[()]) for monomial, c in one.items()}


OPEN: dict[str, Open] = {
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "neg": _neg,
    "mul": _mul,
    "square": _square,
    "integer_pow": _square,
    "div": _div,
}
