"""Entrywise values as polynomials of others, with labelled dimensions: two ways to write one value come out the same.

`(x + x * t) * (1 - t)` is `x - x * t * t`, whatever its unit dimensions and the order of its operands. Nothing is made
of the polynomials; they only tell whether two values are the same function of the same values.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aerogel._jax import Atom, JaxprEqn, Var

from ..known.records import Facts, Identity, the
from ..level import Level
from ..program import is_var

MOST_TERMS = 64
DEEPEST = 60

Labels = tuple[str, ...]  # of the dimensions of a value, "" for one of size 1
Leaf = tuple[Var, Labels]  # without those of size 1
Monomial = frozenset[tuple[Leaf, int]]  # each with its power
Polynomial = dict[Monomial, float]


class TooMany(Exception):
    """A polynomial of more terms than are looked at, or a number that is not known."""


@dataclass
class Monomials:
    """What the values of a level are, each by what made it, as far as that is entrywise.

    Attributes:
        leaves: values that are not opened.
        along: a label without which no value is opened.
    """

    level: Level
    facts: Facts
    dtype: object
    leaves: frozenset[Var] = frozenset()
    along: str | None = None
    _known: dict[tuple[Var, Labels], Polynomial] = field(default_factory=dict)

    def read(self, x: Atom, labels: Labels, depth: int = 0) -> Polynomial:
        """A value with labelled dimensions.

        Raises:
            TooMany: it has too many terms.
        """
        if not is_var(x):
            if x.aval.shape:
                raise TooMany
            return {frozenset(): float(x.val)}
        labels = labelled(x.aval.shape, labels)  # an entrywise equation repeats dimensions of size 1
        key = x, labels
        if key not in self._known:
            found = self._opened(x, labels, depth)
            self._known[key] = {frozenset([((x, tuple(filter(None, labels))), 1)]): 1.0} if found is None else found
        return self._known[key]

    def _opened(self, x: Var, labels: Labels, depth: int) -> Polynomial | None:
        eqn = self.level.maker(x)
        if self.along is not None and self.along not in labels:
            return None
        if eqn is None or x in self.leaves or depth > DEEPEST or eqn.effects or len(eqn.outvars) != 1:
            return None
        name = eqn.primitive.name
        if name == "dot_general":
            return self._times_identity(eqn, labels, depth)
        if any(y.aval.dtype != self.dtype or (not is_var(y) and y.aval.shape) for y in eqn.invars):
            return None
        if name in VIEWS:
            below = VIEWS[name](eqn, labels)
            return None if below is None else self.read(eqn.invars[0], below, depth + 1)
        if name not in ENTRYWISE:
            return None
        operands = [self.read(y, labels if y.aval.shape else (), depth + 1) for y in eqn.invars]
        found = ENTRYWISE[name](*operands)
        if len(found) > MOST_TERMS:
            raise TooMany
        return found

    def _times_identity(self, eqn: JaxprEqn, labels: Labels, depth: int) -> Polynomial | None:
        """A product with an identity, which may be too small for anything to leave it out."""
        contract, batch = eqn.params["dimension_numbers"]
        for side, x in enumerate(eqn.invars):
            known, other = the(Identity, self.facts.of(x)), eqn.invars[1 - side]
            if known is None or batch[0] or len(x.aval.shape) != 2 or len(contract[0]) != 1:
                continue
            (d,) = map(int, contract[1 - side])
            free = len(other.aval.shape) - 1
            (own,), rest = (labels[free:], labels[:free]) if side else (labels[:1], labels[1:])
            return self.read(other, (*rest[:d], own, *rest[d:]), depth + 1)
        return None


def added(one: Polynomial, other: Polynomial, scale: float = 1.0) -> Polynomial:
    """One polynomial and `scale` times another."""
    found = dict(one)
    for monomial, number in other.items():
        found[monomial] = found.get(monomial, 0.0) + scale * number
    return {monomial: number for monomial, number in found.items() if number}


def multiplied(one: Polynomial, other: Polynomial) -> Polynomial:
    """The product of two polynomials.

    Raises:
        TooMany: it has too many terms.
    """
    if len(one) * len(other) > MOST_TERMS:
        raise TooMany
    found: Polynomial = {}
    for a, p in one.items():
        for b, q in other.items():
            monomial = frozenset((Counter(dict(a)) + Counter(dict(b))).items())
            found[monomial] = found.get(monomial, 0.0) + p * q
    return {monomial: number for monomial, number in found.items() if number}


ENTRYWISE: dict[str, Callable[..., Polynomial]] = {
    "add": added,
    "add_any": added,
    "sub": lambda one, other: added(one, other, -1.0),
    "neg": lambda one: added({}, one, -1.0),
    "mul": multiplied,
}


def _broadcast(eqn: JaxprEqn, labels: Labels) -> Labels | None:
    shape, to = eqn.invars[0].aval.shape, eqn.params["broadcast_dimensions"]
    return tuple("" if n == 1 else labels[int(d)] for n, d in zip(shape, to, strict=True))


def _reshaped(eqn: JaxprEqn, labels: Labels) -> Labels | None:
    """Of a reshape that adds or leaves out dimensions of size 1."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if [n for n in before if n != 1] != [n for n in after if n != 1] or eqn.params.get("dimensions") is not None:
        return None
    rest = iter([label for n, label in zip(after, labels, strict=True) if n != 1])
    return tuple("" if n == 1 else next(rest) for n in before)


def _transposed(eqn: JaxprEqn, labels: Labels) -> Labels | None:
    order = list(eqn.params["permutation"])
    return tuple(labels[order.index(d)] for d in range(len(order)))


VIEWS: dict[str, Callable[[JaxprEqn, Labels], Labels | None]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "expand_dims": _reshaped,
    "transpose": _transposed,
}


def labelled(shape: Sequence[int], names: Sequence[str]) -> Labels:
    """Names for the dimensions of a shape; none for those of size 1."""
    return tuple("" if n == 1 else name for n, name in zip(shape, names, strict=True))
