"""What can be known of a value before the program runs: records, and how they follow a value that is moved.

A record is a promise about every value that the program can take: "the value is the identity along dimensions 0 and
1". Records about entries that are zero hold where the program's values are finite (`0 * inf` is taken as 0), as in
rewrites of the class `finite`.
"""

import cmath
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from aerogel import _jax
from aerogel._jax import Atom, Literal, Var

from ..record import record


@record
class Constant:
    """Every entry is `value`, a Python number."""

    value: Any


@record
class Repeated:
    """The value does not vary along dimension `dim`."""

    dim: int


@record
class Counted:
    """Entry `i` along `dim` is the integer `scale * i + offset`, whatever the other places are."""

    dim: int
    scale: int
    offset: int


@record
class Identity:
    """1 where the places along dimensions `a` < `b` (of one size) are equal, 0 elsewhere."""

    a: int
    b: int


@record
class Below:
    """1 where the place along dimension `a` is at least `by` more than that along `b`, 0 elsewhere: a triangle."""

    a: int
    b: int
    by: int


@record
class Shifted:
    """`rest` where the places along dimensions `a` < `b` (of one size) differ, `scale` more where they are equal.

    `eye(n) - 1 / n`, which subtracts the mean of what it multiplies.
    """

    a: int
    b: int
    scale: float
    rest: float


@record
class Diagonal:
    """0 where the places along dimensions `a` < `b` (of one size) differ."""

    a: int
    b: int


@record
class OneHot:
    """1 where the place along `dim` is `index`, 0 elsewhere; no entry is 1 where `index` is out of bounds.

    Attributes:
        dim: the dimension that is picked from.
        index: an integer variable of the program.
        along: for each dimension of `index`, the dimension of the value along which it lies; -1 if it has size 1.
    """

    dim: int
    index: Var
    along: tuple[int, ...]


@record
class Spread:
    """Another variable, its dimensions moved and repeated: its dimension `d` lies along `along[d]`, -1 if of size 1."""

    source: Var
    along: tuple[int, ...]


@record
class Symmetric:
    """Exchanging dimensions `a` < `b` changes nothing but rounding."""

    a: int
    b: int


@record
class Separable:
    """A product of a value that does not vary along dimensions `other`, and of one that does not along `one`."""

    one: frozenset[int]
    other: frozenset[int]


@record
class Kronecker:
    """The Kronecker product, along dimensions `a` < `b`, of two values."""

    a: int
    b: int


@record
class Said:
    """What a user says of the matrices whose rows lie along `a` and whose columns along `b`, and no other record."""

    fact: str
    a: int
    b: int


@record
class Sorted:
    """No entry is smaller than the one before it along `dim`."""

    dim: int


@record
class NonNegative:
    """No entry is negative, nor NaN."""


@record
class Positive:
    """Every entry is larger than 0."""


@record
class Finite:
    """No entry is infinite or NaN."""


Record = (
    Constant
    | Repeated
    | Counted
    | Identity
    | Below
    | Shifted
    | Diagonal
    | OneHot
    | Spread
    | Symmetric
    | Separable
    | Kronecker
    | Said
    | Sorted
    | NonNegative
    | Positive
    | Finite
)
Known = frozenset[Record]
NOTHING: Known = frozenset()
R = TypeVar("R", bound=Record)


def the(kind: type[R], known: Iterable[Record]) -> R | None:
    """The record of a kind, if there is one."""
    for r in known:
        if isinstance(r, kind):
            return r
    return None


class Facts:
    """What is known of each value of one level."""

    def __init__(self, found: dict[Var, Known]):
        self._found = found

    def of(self, atom: Atom) -> Known:
        """The records that hold for a value; those of a literal, too."""
        if isinstance(atom, Literal):
            return of_number(atom.val) if np.ndim(atom.val) == 0 and _jax.is_number(atom.aval.dtype) else NOTHING
        return self._found.get(atom, NOTHING)

    def hold(self, kind: type[Record]) -> bool:
        """Whether there is a record of a kind about any value."""
        return any(isinstance(r, kind) for known in self._found.values() for r in known)

    def learn(self, var: Var, known: Known) -> None:
        """Adds records about a value that is new."""
        if known:
            self._found[var] = known


# What something follows from.
LEADING = frozenset((Constant, Counted, Identity, Below, Shifted, OneHot, Positive))


def closed(known: Known, aval: Any) -> Known:
    """With what follows: a constant is repeated everywhere, an identity is diagonal and symmetric."""
    return known if LEADING.isdisjoint(map(type, known)) else _closed(known, aval)


def _closed(known: Known, aval: Any) -> Known:
    found = set(known)
    for r in known:
        match r:
            case Constant(value):
                found |= of_number(value) | {Repeated(d) for d in range(len(aval.shape))}
            case Counted(dim, scale, offset):
                found |= {Repeated(d) for d in range(len(aval.shape)) if d != dim} | {Finite()}
                if scale >= 0:
                    found.add(Sorted(dim))
                if min(offset, offset + scale * max(aval.shape[dim] - 1, 0)) >= 0:
                    found.add(NonNegative())
            case Identity(a, b) | Below(a, b) | Shifted(a, b):
                found |= {Repeated(d) for d in range(len(aval.shape)) if d not in (a, b)} | _of_two_dimensions(r)
            case OneHot():
                found |= {NonNegative(), Finite()}
            case Positive():
                found.add(NonNegative())
            case _:
                pass
    return frozenset(found)


def _of_two_dimensions(r: Identity | Below | Shifted) -> Known:
    match r:
        case Identity(a, b):
            return frozenset((Diagonal(a, b), Symmetric(a, b), NonNegative(), Finite()))
        case Below():
            return frozenset((NonNegative(), Finite()))
        case Shifted(a, b):
            return frozenset((Symmetric(a, b), Finite()))


def of_number(value: Any) -> Known:
    """What is known of a scalar whose value is known."""
    number = value if isinstance(value, (bool, int, float, complex)) else np.asarray(value)[()].item()
    return _of_number(number) if number != 0 else _of_number.__wrapped__(number)  # 0.0 equals -0.0: none is kept


@lru_cache(maxsize=4096, typed=True)
def _of_number(number: bool | int | float | complex) -> Known:
    found: set[Record] = {Constant(number)}
    if isinstance(number, int) or cmath.isfinite(number):
        found.add(Finite())
    if not isinstance(number, complex) and number >= 0:
        found.add(NonNegative())
    if not isinstance(number, complex) and number > 0:
        found.add(Positive())
    return frozenset(found)


def moved(known: Iterable[Record], to: Sequence[int], shape: Sequence[int], new: Sequence[int]) -> set[Record]:
    """The records of a value whose dimension `d`, of size `shape[d]`, is `to[d]` in a value of shape `new`.

    -1 is a dimension that is no more (it had size 1). A dimension of size 1 may be stretched; dimensions of `new` that
    none is moved to are repetitions.
    """
    kept = {d: t for d, t in enumerate(to) if t >= 0 and shape[d] == new[t]}
    found: set[Record] = {Repeated(t) for t in range(len(new)) if t not in kept.values()}
    for r in known:
        if isinstance(r, (OneHot, Spread)):
            found |= _moved_source(r, kept, shape)
        elif isinstance(r, (Identity, Below, Shifted, Diagonal, Symmetric, Kronecker, Said)):
            if r.a in kept and r.b in kept:
                a, b = kept[r.a], kept[r.b]
                found.add(replace(r, a=a, b=b) if a < b or isinstance(r, (Below, Said)) else replace(r, a=b, b=a))
        elif isinstance(r, Separable):
            found.add(Separable(*(frozenset(kept[d] for d in dims if d in kept) for dims in (r.one, r.other))))
        elif isinstance(r, (Repeated, Sorted)):
            found |= {type(r)(kept[r.dim])} if r.dim in kept else set()
        elif not isinstance(r, Counted):
            found.add(r)
        elif r.dim in kept:
            found.add(Counted(kept[r.dim], r.scale, r.offset))
        elif shape[r.dim] == 1:
            found.add(Constant(r.offset))
    return found


def _moved_source(r: OneHot | Spread, kept: dict[int, int], shape: Sequence[int]) -> set[Record]:
    """A record that names another variable."""
    if any(d >= 0 and d not in kept and shape[d] != 1 for d in r.along):
        return set()
    along = tuple(kept.get(d, -1) for d in r.along)
    if isinstance(r, Spread):
        return {Spread(r.source, along)}
    return {OneHot(kept[r.dim], r.index, along)} if r.dim in kept else set()
