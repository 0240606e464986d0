"""Whether a value is zero whatever its operands are: sums and quotients of products in which everything cancels.

Values are read in the frame of one large value, as sums of products of powers of what is not opened. What does not vary
along `axes` leaves sums along them: `sum(g / S * e)` is `g / S * sum(e)`, and where `S` is `sum(e)`, that is `g`.
Coefficients are rational numbers, so that only what cancels in exact arithmetic is found to be zero.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..applied import applies_function
from ..fusion.canonical import one_entry
from ..known.picks import counted_pick
from ..level import Level
from ..program import is_var

DEEPEST = 60
MOST_TERMS = 32
MOST_READ = 400

Dims = tuple[int | None, ...]  # for each dimension of a value, the one of the frame along which it lies; None of size 1
# What is not opened: a variable and where it lies, or the sum of a product.
Base = tuple[Any, ...]
Product = frozenset[tuple[Base, int]]  # bases with their exponents
Terms = dict[Product, Fraction]


@dataclass
class Cancelling:
    """What values of a level are in a frame.

    Attributes:
        level: where they stand.
        shape, axes: of the frame, and the dimensions along which sums are taken apart.
    """

    level: Level
    shape: tuple[int, ...]
    axes: frozenset[int]
    _known: dict[tuple[Var, Dims], Terms] = field(default_factory=dict)

    def read(self, x: Atom, dims: Dims | None = None, depth: int = 0) -> Terms:
        """A value as a sum of products; without `dims`, one in the shape of the frame."""
        if dims is None:
            dims = self._lying(x.aval.shape, range(len(self.shape)))
        if isinstance(x, Literal):
            number = x.val
            if np.ndim(number) == 0 and np.isrealobj(number) and np.isfinite(number):
                return {frozenset(): Fraction(float(number))} if number else {}
            return _base(("literal", id(x)))
        key = x, dims
        if key not in self._known:
            self._known[key] = self._opened(x, dims, depth) if len(self._known) < MOST_READ else _base(key)
        return self._known[key]

    def _opened(self, x: Var, dims: Dims, depth: int) -> Terms:
        eqn = self.level.maker(x)
        closed = _base((x, dims))
        if eqn is None or depth > DEEPEST or eqn.primitive.name not in OPEN or eqn.effects:
            return closed
        if not jnp.issubdtype(x.aval.dtype, jnp.floating):
            return closed
        found = OPEN[eqn.primitive.name](self, eqn, dims, depth + 1)
        return closed if found is None or len(found) > MOST_TERMS else found

    def _lying(self, shape: Sequence[int], dims: Sequence[int | None]) -> Dims:
        return tuple(None if n == 1 else d for n, d in zip(shape, dims, strict=True))

    def operands(self, eqn: JaxprEqn, dims: Dims, depth: int) -> list[Terms] | None:
        """The operands of an entrywise equation; None if they are not of its type."""
        if any(x.aval.dtype != eqn.outvars[0].aval.dtype for x in eqn.invars):
            return None
        lying = [self._lying(x.aval.shape, dims if x.aval.shape else ()) for x in eqn.invars]
        return [self.read(x, one, depth) for x, one in zip(eqn.invars, lying, strict=True)]

    def arranged(self, eqn: JaxprEqn, dims: Dims, depth: int) -> Terms | None:
        """What an equation reads that adds or drops dimensions of size 1."""
        (x, *_), shape = eqn.invars, eqn.outvars[0].aval.shape
        kept = [d for d, n in zip(dims, shape, strict=True) if n != 1]
        if [n for n in x.aval.shape if n != 1] != [n for n in shape if n != 1]:
            return None
        places = iter(kept)
        return self.read(x, tuple(None if n == 1 else next(places) for n in x.aval.shape), depth)

    def repeated(self, eqn: JaxprEqn, dims: Dims, depth: int) -> Terms:
        """What an equation repeats."""
        (x, *_), to = eqn.invars, eqn.params["broadcast_dimensions"]
        return self.read(x, self._lying(x.aval.shape, [dims[int(d)] for d in to]), depth)

    def summed(self, eqn: JaxprEqn, dims: Dims, depth: int) -> Terms | None:
        """A sum along all the axes of the frame, taken apart, or along dimensions of size 1."""
        (x,), gone = eqn.invars, {int(d) for d in eqn.params["axes"]}
        shape = x.aval.shape
        long = [d for d in sorted(gone) if shape[d] != 1]
        along = sorted(self.axes)
        if long and ([shape[d] for d in long] != [self.shape[d] for d in along] or not self.axes.isdisjoint(dims)):
            return None
        kept, over = iter(dims), iter(along)
        placed = tuple((next(over) if shape[d] != 1 else None) if d in gone else next(kept) for d in range(len(shape)))
        terms = self.read(x, placed, depth)
        return self._sum(terms) if long else terms

    def _sum(self, terms: Terms) -> Terms:
        found: Terms = {}
        for product, coefficient in terms.items():
            inner = frozenset((base, n) for base, n in product if self._varies(base))
            outer = product - inner
            entries = self._entries(inner) if len(inner) == 1 else None
            if entries is not None:
                for entry, number in entries.items():
                    _add(found, _normal([*outer, *entry]), coefficient * number)
            elif inner:
                outer |= {(("sum", inner), 1)}
                _add(found, _normal(outer), coefficient)
            else:
                _add(found, outer, coefficient * math.prod(self.shape[d] for d in self.axes))
        return found

    def _entries(self, product: Product) -> Terms | None:
        """What was added to zeros, one entry to each row: the sums of the rows."""
        (((x, dims), power),) = product
        eqn = self.level.maker(x) if is_var(x) else None
        if power != 1 or eqn is None or eqn.primitive.name not in ("scatter", "scatter-add") or applies_function(eqn):
            return None
        if eqn.params["mode"] not in (lax.GatherScatterMode.PROMISE_IN_BOUNDS, lax.GatherScatterMode.CLIP):
            return None  # what is out of bounds is dropped
        one = counted_pick(self.level, eqn) or one_entry(self.level, eqn)
        if one is None or self.axes != frozenset(dims[one.dim : one.dim + 1]):
            return None
        entry, rows = eqn.invars[2], [d for k, d in enumerate(dims) if k != one.dim]
        if entry.aval.ndim > len(rows):
            rows.insert(one.dim, None)
        return self.read(entry, self._lying(entry.aval.shape, rows))

    def _varies(self, base: Base) -> bool:
        return (
            base[0] != "sum" and base[0] != "literal" and not self.axes.isdisjoint(d for d in base[1] if d is not None)
        )


def _base(base: Base) -> Terms:
    return {frozenset({(base, 1)}): Fraction(1)}


def _normal(product: Any) -> Product:
    """A product in which each base stands once, and none to the power of zero."""
    powers: dict[Base, int] = {}
    for base, n in product:
        powers[base] = powers.get(base, 0) + n
    return frozenset((base, n) for base, n in powers.items() if n)


def _add(terms: Terms, product: Product, coefficient: Fraction) -> None:
    total = terms.get(product, Fraction(0)) + coefficient
    if total:
        terms[product] = total
    else:
        terms.pop(product, None)


def _plus(one: Terms, other: Terms, sign: int = 1) -> Terms:
    found = dict(one)
    for product, coefficient in other.items():
        _add(found, product, sign * coefficient)
    return found


def _times(one: Terms, other: Terms) -> Terms | None:
    if len(one) * len(other) > MOST_TERMS:
        return None
    found: Terms = {}
    for a, p in one.items():
        for b, q in other.items():
            _add(found, _normal([*a, *b]), p * q)
    return found


def _power(terms: Terms, exponent: int) -> Terms | None:
    """A power of one product."""
    if len(terms) != 1:
        return None
    ((product, coefficient),) = terms.items()
    return {frozenset((base, n * exponent) for base, n in product if exponent): coefficient**exponent}


def _entrywise(function: Callable[..., Terms | None]) -> Callable[..., Terms | None]:
    def opened(frame: Cancelling, eqn: JaxprEqn, dims: Dims, depth: int) -> Terms | None:
        operands = frame.operands(eqn, dims, depth)
        return None if operands is None else function(*operands)

    return opened


def _over(one: Terms, other: Terms) -> Terms | None:
    inverse = _power(other, -1)
    return None if inverse is None else _times(one, inverse)


def _integer_pow(frame: Cancelling, eqn: JaxprEqn, dims: Dims, depth: int) -> Terms | None:
    operands = frame.operands(eqn, dims, depth)
    return None if operands is None else _power(operands[0], eqn.params.get("y", 2))


Open = Callable[[Cancelling, JaxprEqn, Dims, int], "Terms | None"]
OPEN: dict[str, Open] = {
    "add": _entrywise(_plus),
    "add_any": _entrywise(_plus),
    "sub": _entrywise(lambda a, b: _plus(a, b, -1)),
    "neg": _entrywise(lambda a: _plus({}, a, -1)),
    "mul": _entrywise(_times),
    "div": _entrywise(_over),
    "integer_pow": _integer_pow,
    "square": _integer_pow,
    "copy": _entrywise(lambda a: a),
    "reshape": Cancelling.arranged,
    "squeeze": Cancelling.arranged,
    "expand_dims": Cancelling.arranged,
    "broadcast_in_dim": Cancelling.repeated,
    "reduce_sum": Cancelling.summed,
}


def total(terms: Sequence[tuple[Terms, int]]) -> Terms:
    """The sum of values, each with a sign."""
    found: Terms = {}
    for one, sign in terms:
        found = _plus(found, one, sign)
    return found
