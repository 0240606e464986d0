"""Sums whose terms are padded with zeros, as the derivatives of slices are."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal

from ..level import Level
from ..program import is_var
from ..record import record

ADDS = frozenset(("add", "add_any"))
# Of more ways to pad it is not asked whether they overlap.
MOST_COMPARED = 64
Key = tuple[object, ...]
Box = list[tuple[int, int]]


@record
class PaddedSum:
    """A sum that is no term of another one.

    Attributes:
        place: of its last addition.
        inner: of all of its additions.
        paddings: what pads its terms, those together that pad in one way and are read here only,
            each as often as it is added.
        others: the other terms.
    """

    place: int
    inner: frozenset[int]
    paddings: tuple[tuple[JaxprEqn, ...], ...]
    others: tuple[Atom, ...]

    @property
    def padded(self) -> int:
        """How many terms are padded."""
        return sum(map(len, self.paddings))


def way_to_pad(eqn: JaxprEqn) -> Key | None:
    """How an equation pads with zeros; None if it does not, or cuts."""
    if eqn.primitive.name != "pad":
        return None
    x, fill = eqn.invars
    aval = eqn.outvars[0].aval
    if not isinstance(fill, Literal) or np.any(fill.val) or np.any(np.signbit(np.real(fill.val))):
        return None
    config = tuple((int(low), int(high), int(inner)) for low, high, inner in eqn.params["padding_config"])
    if not is_var(x) or not _jax.is_number(aval.dtype) or aval.weak_type or any(n < 0 for one in config for n in one):
        return None
    return x.aval.shape, config, aval.shape, aval.dtype


def padded_sums(level: Level) -> Iterator[PaddedSum]:
    """The sums of padded terms."""
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name not in ADDS or not _is_even(eqn) or _is_term(level, place):
            continue
        terms, inner = list[Atom](), {place}
        waiting = list(reversed(eqn.invars))
        while waiting:
            x = waiting.pop()
            at = level.made_by.get(x, -1) if is_var(x) else -1
            if at >= 0 and level.eqns[at].primitive.name in ADDS and _is_even(level.eqns[at]) and _is_term(level, at):
                inner.add(at)
                waiting += reversed(level.eqns[at].invars)
            else:
                terms.append(x)
        found = _grouped(level, place, terms, frozenset(inner))
        if found.padded > 1:
            yield found


def _is_even(eqn: JaxprEqn) -> bool:
    return all(x.aval == eqn.outvars[0].aval for x in eqn.invars)


def _is_term(level: Level, place: int) -> bool:
    """Whether a sum is read by another one alone, once."""
    (out,) = level.eqns[place].outvars
    readers = level.readers(out)
    if len(readers) != 1 or readers[0] < 0:
        return False
    reader = level.eqns[readers[0]]
    return reader.primitive.name in ADDS and _is_even(reader) and reader.invars.count(out) == 1


def _grouped(level: Level, place: int, terms: Sequence[Atom], inner: frozenset[int]) -> PaddedSum:
    alike, others = dict[Key, list[JaxprEqn]](), list[Atom]()
    for x in terms:
        maker = level.maker(x)
        key = None if maker is None else way_to_pad(maker)
        if maker is None or key is None or not inner.issuperset(level.readers(maker.outvars[0])):
            others.append(x)
        else:
            alike.setdefault(key, []).append(maker)
    return PaddedSum(place, inner, tuple(map(tuple, alike.values())), tuple(others))


def are_apart(total: PaddedSum) -> bool:
    """Whether no number of the sum is added up of more than one way to pad: order and bits stay as they are."""
    if len(total.paddings) > MOST_COMPARED:
        return False
    boxes = [box_of(alike[0]) for alike in total.paddings]
    return all(
        any(stop <= other or end <= start for (start, stop), (other, end) in zip(a, b, strict=True))
        for a, b in combinations(boxes, 2)
    )


def box_of(eqn: JaxprEqn) -> Box:
    """Along each dimension the first place that is not padded, and the one behind the last."""
    shape = eqn.outvars[0].aval.shape
    return [(low, n - high) for (low, high, _), n in zip(eqn.params["padding_config"], shape, strict=True)]
